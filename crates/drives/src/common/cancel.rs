//! `Cancel`: a flag that ends the opening of drives early.
//!
//! A program sets the flag if it is told to stop while it is still starting. Code that waits for a
//! lock, a server or a cluster while it opens a drive checks the flag at least ten times per
//! second. Drives that are already open ignore the flag.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use millrace_block::{Error, ErrorKind};

/// Maximum time between two checks of a `Cancel` flag.
pub(crate) const LOOK: Duration = Duration::from_millis(50);

/// A flag that ends the opening of drives early. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Sets the flag. Every drive whose opening checks this flag stops opening and returns an
    /// error.
    pub fn set(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Returns true if the flag is set. Code that is opening a drive must then return an error.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// Returns an error if the flag is set. `what` names the drive and the awaited event.
    ///
    /// # Errors
    /// Returns `System` if the flag is set.
    pub fn check(&self, what: &dyn std::fmt::Display) -> Result<(), Error> {
        match self.is_set() {
            true => Err(Error::new(ErrorKind::System, format!("{what}: the opening was stopped"))),
            false => Ok(()),
        }
    }

    /// Sleeps for `time`, or until the flag is set. Returns true if it is set.
    #[must_use]
    pub fn sleep(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        while !self.is_set() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            std::thread::sleep(left.min(LOOK));
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_ends_when_the_flag_is_set_or_its_time_is_over() {
        let cancel = Cancel::default();
        assert!(!cancel.sleep(Duration::from_millis(5)));
        assert!(cancel.check(&"d").is_ok());
        let theirs = cancel.clone();
        let setter = std::thread::spawn(move || theirs.set());
        assert!(cancel.sleep(Duration::from_secs(60)));
        setter.join().unwrap();
        let text = cancel.check(&"d").unwrap_err().to_string();
        assert_eq!(text, "d: the opening was stopped");
    }
}
