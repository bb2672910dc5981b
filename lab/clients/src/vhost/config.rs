//! Features and the configuration space of a virtio-blk device, as the client reads them.
//!
//! The code is plain arithmetic over bits and bytes (virtio 1.2, sections 5.2.3 and 5.2.4), used
//! when a client connects.

use millrace_exports::virtio::{config, feature};

pub(crate) const WANTED: u64 = feature::SIZE_MAX
    | feature::SEG_MAX
    | feature::RO
    | feature::BLK_SIZE
    | feature::FLUSH
    | feature::MQ
    | feature::DISCARD
    | feature::WRITE_ZEROES
    | feature::INDIRECT_DESC
    | feature::EVENT_IDX
    | feature::PROTOCOL_FEATURES
    | feature::VERSION_1;

/// Configuration of a disk as reported by its server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskConfig {
    /// Size of the disk in sectors of 512 bytes.
    pub capacity_sectors: u64,
    /// Size of a logical block in bytes.
    pub block_bytes: u32,
    /// Maximum size of a segment in bytes.
    pub segment_bytes_max: u32,
    /// Maximum number of segments of a request.
    pub segments_max: u32,
    /// Number of queues of the server.
    pub queues: u16,
    /// Maximum number of sectors of a discard; 0 if the disk accepts none.
    pub discard_sectors_max: u32,
    /// Maximum number of sectors of a write of zeroes; 0 if the disk accepts none.
    pub write_zeroes_sectors_max: u32,
    /// Negotiated features, as virtio feature bits.
    pub features: u64,
}

impl DiskConfig {
    /// Parses the configuration space. A field whose feature is missing gets the default of the
    /// specification.
    pub(crate) fn parse(bytes: &[u8; config::BYTES], features: u64) -> DiskConfig {
        let has = |feature| features & feature != 0;
        let word32 = |at: usize| {
            let mut word = [0; 4];
            word.copy_from_slice(&bytes[at..at + 4]);
            u32::from_le_bytes(word)
        };
        let capacity_sectors =
            u64::from(word32(config::CAPACITY)) | u64::from(word32(config::CAPACITY + 4)) << 32;
        let field = |feature, at, otherwise| if has(feature) { word32(at) } else { otherwise };
        // qemu-storage-daemon offers SIZE_MAX with a value of 0, which is taken as no limit.
        let segment_bytes_max = match field(feature::SIZE_MAX, config::SIZE_MAX, 0) {
            0 => u32::MAX,
            most => most,
        };
        let queues = u16::from_le_bytes([0, 1].map(|byte| bytes[config::NUM_QUEUES + byte]));
        DiskConfig {
            capacity_sectors,
            block_bytes: field(feature::BLK_SIZE, config::BLK_SIZE, 512),
            segment_bytes_max,
            segments_max: field(feature::SEG_MAX, config::SEG_MAX, 1),
            queues: if has(feature::MQ) { queues } else { 1 },
            discard_sectors_max: field(feature::DISCARD, config::MAX_DISCARD_SECTORS, 0),
            write_zeroes_sectors_max: field(
                feature::WRITE_ZEROES,
                config::MAX_WRITE_ZEROES_SECTORS,
                0,
            ),
            features,
        }
    }

    /// Returns true if the disk refuses writes.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.features & feature::RO != 0
    }

    /// Returns true if the disk accepts flushes.
    #[must_use]
    pub fn has_flush(&self) -> bool {
        self.features & feature::FLUSH != 0
    }

    /// Returns the size of the disk in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.capacity_sectors.saturating_mul(512)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_without_their_feature_have_their_defaults() {
        let mut bytes = [0xff; config::BYTES];
        bytes[..8].copy_from_slice(&0x1_0000_0001u64.to_le_bytes());
        let plain = DiskConfig::parse(&bytes, feature::VERSION_1);
        assert_eq!(plain.size_bytes(), 0x200_0000_0200);
        assert_eq!((plain.block_bytes, plain.queues, plain.segments_max), (512, 1, 1));
        assert_eq!((plain.discard_sectors_max, plain.write_zeroes_sectors_max), (0, 0));
        bytes[20..24].copy_from_slice(&4096u32.to_le_bytes());
        bytes[34..36].copy_from_slice(&7u16.to_le_bytes());
        let full = DiskConfig::parse(&bytes, WANTED);
        assert_eq!((full.block_bytes, full.queues), (4096, 7));
        assert!(full.is_read_only() && full.has_flush() && !plain.is_read_only());
    }
}
