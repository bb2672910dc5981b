//! Amount of payload memory in huge pages.
//!
//! The kernel walks the page tables of the process to compute it, so it is read at most every ten
//! seconds.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use millrace_machine::lock_unpoisoned;
use millrace_machine::payload::huge_bytes;

const REUSE_TIME: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub struct HugePages(Mutex<Option<(Instant, u64)>>);

impl HugePages {
    pub fn bytes(&self, now: Instant) -> u64 {
        let mut last = lock_unpoisoned(&self.0);
        match *last {
            Some((at, bytes)) if now.duration_since(at) < REUSE_TIME => bytes,
            _ => {
                let bytes = huge_bytes().map_or(0, |bytes| bytes as u64);
                *last = Some((now, bytes));
                bytes
            }
        }
    }
}

pub fn allowed() -> String {
    let path = "/sys/kernel/mm/transparent_hugepage/enabled";
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let chosen = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    match chosen {
        Some(("never", _)) => format!(
            "payload memory uses no huge pages, because {path} is `never`; set it to `madvise`"
        ),
        Some((word, _)) => {
            format!("payload memory uses huge pages if the kernel has free ones: {path} is {word}")
        }
        None => {
            "payload memory uses no huge pages: the kernel lacks transparent huge pages".to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_holds_for_ten_seconds() {
        let (pages, now) = (HugePages::default(), Instant::now());
        *pages.0.lock().unwrap() = Some((now, 7));
        assert_eq!(pages.bytes(now + REUSE_TIME - Duration::from_millis(1)), 7);
        let bytes = pages.bytes(now + REUSE_TIME);
        assert_eq!(*pages.0.lock().unwrap(), Some((now + REUSE_TIME, bytes)), "it was asked again");
    }
}
