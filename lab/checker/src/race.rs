//! `LineAccesses`: records the last write and the reads of each `Line`, to find unordered accesses.
//!
//! A session owns the `LineAccesses`; `CheckedLine` calls its methods at every access. A race is a
//! failure even if the order of its accesses does not change the outcome. All earlier accesses by
//! other threads must happen before a write, and the last write must happen before a read. Source:
//! Flanagan and Freund, "FastTrack", PLDI 2009.

use std::vec::Vec;

use super::view::{THREADS_MAX, ThreadViews};

#[derive(Debug, Clone, Copy)]
struct LineHistory {
    writer: u8,
    written: u32,
    read: [u32; THREADS_MAX],
}

#[derive(Debug)]
pub(super) struct LineAccesses {
    lines: Vec<LineHistory>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Race {
    pub(super) other: u8,
    pub(super) wrote: bool,
}

impl LineAccesses {
    pub(super) fn new() -> LineAccesses {
        LineAccesses { lines: Vec::new() }
    }

    pub(super) fn reset(&mut self) {
        self.lines.clear();
    }

    /// Adds a `Line` to check for data races. The creation of the line counts as a write by the
    /// current thread.
    pub(super) fn add(&mut self, views: &ThreadViews) -> u32 {
        let (writer, written) = (views.thread, views.epoch());
        self.lines.push(LineHistory { writer, written, read: [0; THREADS_MAX] });
        (self.lines.len() - 1) as u32
    }

    pub(super) fn read(&mut self, views: &ThreadViews, line: u32) -> Result<(), Race> {
        let line = &mut self.lines[line as usize];
        if !views.current.has(line.writer, line.written) {
            return Err(Race { other: line.writer, wrote: true });
        }
        line.read[usize::from(views.thread)] = views.epoch();
        Ok(())
    }

    pub(super) fn write(&mut self, views: &ThreadViews, line: u32) -> Result<(), Race> {
        let line = &mut self.lines[line as usize];
        if !views.current.has(line.writer, line.written) {
            return Err(Race { other: line.writer, wrote: true });
        }
        let clock = &views.current.clock;
        if let Some(other) = (0..THREADS_MAX).find(|t| line.read[*t] > clock[*t]) {
            return Err(Race { other: other as u8, wrote: false });
        }
        (line.writer, line.written) = (views.thread, views.epoch());
        line.read = [0; THREADS_MAX];
        Ok(())
    }
}
