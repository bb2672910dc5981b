//! `TraceNames`: process names, device names and dropped events, as the notes of a trace report
//! them.
//!
//! A process keeps its first name, as in blkparse. Only recordings of millrace name devices, in
//! messages that begin with `DEVICE_NAME`.

use std::collections::HashMap;

use millrace_block::DROPPED_EVENTS;
use millrace_block::blktrace::{major, minor};
use millrace_runtime::DEVICE_NAME;

/// Maximum number of process names kept; they take about 4 MiB.
const NAMES_MAX: usize = 65_536;
const DEVICES_MAX: usize = 4_096;
const NAME_BYTES_MAX: usize = 16;

/// Names of processes and devices in a trace, and the trace's count of dropped events.
#[derive(Debug, Clone, Default)]
pub struct TraceNames {
    processes: HashMap<u32, Box<[u8]>>,
    devices: HashMap<u32, String>,
    dropped_events: u64,
    /// Count of sequence numbers that no event carries; each stands for a dropped event.
    missing: i64,
}

impl TraceNames {
    /// Records the name of a process (the bytes up to the first zero), unless it already has one.
    pub(super) fn add(&mut self, pid: u32, data: &[u8]) {
        if self.processes.len() < NAMES_MAX && !self.processes.contains_key(&pid) {
            let name = data.split(|byte| *byte == 0).next().unwrap_or_default();
            self.processes.insert(pid, name[..name.len().min(NAME_BYTES_MAX)].into());
        }
    }

    /// Reads a message of the recorder: a number of dropped events, or the name of a device. A
    /// device keeps its first name. Two recordings that are read together may have devices of the
    /// same name. In that case, the number of the later device is appended to its name.
    pub(super) fn add_message(&mut self, device: u32, message: &[u8]) {
        let Ok(text) = std::str::from_utf8(message) else { return };
        if let Some(number) = text.strip_prefix(DROPPED_EVENTS) {
            let events = number.parse::<u32>().map_or(0, u64::from);
            self.dropped_events = self.dropped_events.saturating_add(events);
        }
        let name = text.strip_prefix(DEVICE_NAME).filter(|name| !name.is_empty());
        let Some(name) = name else { return };
        if self.devices.len() == DEVICES_MAX || self.devices.contains_key(&device) {
            return;
        }
        let plain = |letter: char| if letter.is_control() || letter == ' ' { '_' } else { letter };
        let mut name: String = name.chars().map(plain).collect();
        if self.devices.values().any(|other| *other == name) {
            name = format!("{name}@{},{}", major(device), minor(device));
        }
        self.devices.insert(device, name);
    }

    pub(super) fn add_missing(&mut self, numbers: i64) {
        self.missing += numbers;
    }

    /// Forgets all device names, so that devices are shown by number.
    pub fn forget_devices(&mut self) {
        self.devices.clear();
    }

    /// Returns the number of events that the recorder dropped because it could not keep up: the
    /// larger of the number in its notes and the number of missing sequence numbers.
    #[must_use]
    pub fn dropped_events(&self) -> u64 {
        self.dropped_events.max(self.missing.unsigned_abs())
    }

    /// Returns a warning about dropped events, or `None` if there are none.
    #[must_use]
    pub fn dropped_note(&self) -> Option<String> {
        let events = self.dropped_events();
        (events > 0).then(|| {
            format!(
                "{events} events are missing: the recorder could not keep up and dropped them; \
                 `millrace trace record` records fewer with --drive, --action or --op, and \
                 `millrace-lab bench` has --trace-ring"
            )
        })
    }

    /// Returns the name of a device, or `None` if the trace does not name it.
    #[must_use]
    pub fn device(&self, device: u32) -> Option<&str> {
        self.devices.get(&device).map(String::as_str)
    }

    /// Returns the name of a device, or `major,minor` if the trace does not name it.
    #[must_use]
    pub fn device_or_number(&self, device: u32) -> String {
        let number = || format!("{},{}", major(device), minor(device));
        self.device(device).map_or_else(number, str::to_owned)
    }

    /// Returns the name of a process as raw bytes. If the trace does not name the process, returns
    /// `(null)`, as blkparse prints it.
    #[must_use]
    pub fn of(&self, pid: u32) -> &[u8] {
        self.processes.get(&pid).map_or(b"(null)", |name| name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_has_the_name_of_its_message_and_two_are_told_apart() {
        let mut names = TraceNames::default();
        let say = |name: &str| format!("{DEVICE_NAME}{name}").into_bytes();
        let device = |minor| millrace_block::blktrace::device(240, minor);
        names.add_message(device(0), &say("d0"));
        names.add_message(device(0), &say("again"));
        names.add_message(device(1), &say("d0"));
        names.add_message(device(2), b"something else");
        names.add_message(device(3), &say("a b\u{1b}[2J"));
        let shown = [0, 1, 2, 3].map(|minor| names.device_or_number(device(minor)));
        assert_eq!(shown, ["d0", "d0@240,1", "240,2", "a_b_[2J"]);
        names.forget_devices();
        assert_eq!(names.device(device(0)), None);
    }

    #[test]
    fn dropped_events_are_added_up_and_other_numbers_are_none() {
        let mut names = TraceNames::default();
        for number in ["7", "4294967295", "4294967296", "-1", "", "8 "] {
            names.add_message(0, format!("{DROPPED_EVENTS}{number}").as_bytes());
        }
        assert_eq!(names.dropped_events(), 7 + u64::from(u32::MAX));
    }

    #[test]
    fn the_first_name_stays_and_ends_at_its_zero() {
        let mut names = TraceNames::default();
        names.add(7, b"fio\0\0junk");
        names.add(7, b"dd\0");
        assert_eq!((names.of(7), names.of(8)), (&b"fio"[..], &b"(null)"[..]));
    }
}
