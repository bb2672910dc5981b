//! `CacheConfig`: settings of a cache, validated before the cache is created.
//!
//! The settings are plain data, filled in by programs and by the configuration file. Their names
//! follow the kernel's `dirty_bytes`, `dirty_expire_centisecs` and `read_ahead_kb`.

use alloc::format;
use core::time::Duration;

use millrace_block::{Error, ErrorKind};

use crate::memory::page::PageSize;

/// Point at which a write is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum CacheMode {
    /// A write is acknowledged when it is in memory. A flush, a FUA write or the flusher brings it
    /// to the volume later.
    #[default]
    WriteBack,
    /// A write is acknowledged when it is on the volume. Reads are still answered from memory.
    WriteThrough,
}

/// Policy for registering the cache's memory with drives in advance, instead of mapping it for each
/// I/O. Registered memory is locked in RAM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Registered {
    /// Leaves the choice between `Always` and `Never` to the program that creates the cache. The
    /// cache itself treats `Auto` like `Never`.
    Auto,
    /// Register the cache's memory with drives that support it.
    Always,
    /// Do not register the cache's memory with drives. Instead, drivers map the memory for each
    /// I/O.
    #[default]
    Never,
}

/// Settings of a cache: sizes, limits and times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheConfig {
    /// Size of the memory for pages, in bytes: 1 MiB to 1 TiB.
    pub size_bytes: u64,
    /// Maximum amount of dirty data in bytes, 64 KiB to `size_bytes`. Writers are slowed down once
    /// half of this amount is dirty. `None` stands for half of `size_bytes`.
    pub dirty_max_bytes: Option<u64>,
    /// Age at which the flusher writes a dirty page, 1 ms or more.
    pub dirty_age: Duration,
    /// Maximum read-ahead of a sequential stream, in bytes; 0 turns read-ahead off.
    pub read_ahead_bytes: u64,
    /// Point at which a write is acknowledged.
    pub mode: CacheMode,
    /// Policy for registering the cache's memory with drives in advance.
    pub registered: Registered,
}

impl Default for CacheConfig {
    fn default() -> Self {
        CacheConfig {
            size_bytes: 256 << 20,
            dirty_max_bytes: None,
            dirty_age: Duration::from_secs(5),
            read_ahead_bytes: 512 << 10,
            mode: CacheMode::WriteBack,
            registered: Registered::Never,
        }
    }
}

impl CacheConfig {
    /// Returns the maximum amount of dirty data, in bytes.
    #[must_use]
    pub fn dirty_max(&self) -> u64 {
        self.dirty_max_bytes.unwrap_or(self.size_bytes / 2)
    }

    /// Checks that each setting is in its range.
    ///
    /// # Errors
    /// `InvalidSetting` with a sentence that names the setting, its value and its range.
    pub fn validate(&self) -> Result<(), Error> {
        let wrong = |text| Err(Error::new(ErrorKind::InvalidSetting, text));
        let (least, most) = (1 << 20, 1 << 40);
        if !(least..=most).contains(&self.size_bytes) {
            return wrong(format!(
                "size is {} bytes; set it between 1 MiB and 1 TiB",
                self.size_bytes
            ));
        }
        let dirty = self.dirty_max();
        if !(64 << 10..=self.size_bytes).contains(&dirty) {
            return wrong(format!(
                "dirty-max is {dirty} bytes; set it between 64 KiB and the cache's size"
            ));
        }
        if self.read_ahead_bytes > self.size_bytes / 4 {
            let ahead = self.read_ahead_bytes;
            return wrong(format!(
                "read-ahead is {ahead} bytes; set it to at most a quarter of the cache's size"
            ));
        }
        match self.dirty_age < Duration::from_millis(1) {
            true => wrong(format!("dirty-age is {:?}; set it to 1 ms or more", self.dirty_age)),
            false => Ok(()),
        }
    }

    pub(crate) fn frames(&self, page: PageSize) -> u32 {
        u32::try_from(page.fit(self.size_bytes)).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_out_of_their_range_are_named_with_their_value() {
        let fine = CacheConfig::default();
        assert_eq!((fine.validate(), fine.dirty_max()), (Ok(()), 128 << 20));
        let least = CacheConfig { size_bytes: 1 << 20, ..fine };
        let frames = |block| least.frames(PageSize::over(block));
        assert_eq!((frames(512), frames(65_536)), (256, 16));
        assert_eq!(CacheConfig { read_ahead_bytes: 64 << 20, ..fine }.validate(), Ok(()));
        let wrong = [
            (
                CacheConfig { size_bytes: 4096, ..fine },
                "size is 4096 bytes; set it between 1 MiB and 1 TiB",
            ),
            (
                CacheConfig { dirty_max_bytes: Some(1), ..fine },
                "dirty-max is 1 bytes; set it between 64 KiB and the cache's size",
            ),
            (
                CacheConfig { read_ahead_bytes: 65 << 20, ..fine },
                "read-ahead is 68157440 bytes; set it to at most a quarter of the cache's size",
            ),
            (
                CacheConfig { dirty_age: Duration::from_nanos(5), ..fine },
                "dirty-age is 5ns; set it to 1 ms or more",
            ),
        ];
        for (config, text) in wrong {
            assert_eq!(config.validate(), Err(Error::new(ErrorKind::InvalidSetting, text)));
        }
    }
}
