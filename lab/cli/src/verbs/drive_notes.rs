//! `DriveNotes`: prints messages that drives report by themselves while a verb does I/O on them,
//! such as that an NBD drive lost its server, or has reconnected.
//!
//! A thread checks once per second and writes notes to standard error. Verbs that open drives
//! themselves create a `DriveNotes` (`serve` writes such notes to its log). Dropping the value
//! stops the thread, after a last check.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use millrace::Volume;
use millrace_block::Disk;
use millrace_machine::Native;

const PERIOD: Duration = Duration::from_secs(1);
/// Maximum number of notes shown per drive; further notes are only counted.
const SHOWN_MAX: usize = 5;

pub struct DriveNotes {
    /// Channel to the thread, which ends when this sender is dropped.
    done: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl DriveNotes {
    /// Prints messages of the volumes' drives until the returned value is dropped. If `volumes`
    /// lists a volume more than once, messages are still printed only once.
    pub fn of<'a>(volumes: impl IntoIterator<Item = &'a Arc<Volume>>) -> DriveNotes {
        let mut disks = Vec::<Arc<Disk<Native>>>::new();
        for disk in volumes.into_iter().flat_map(|volume| volume.disks()) {
            if !disks.iter().any(|known| Arc::ptr_eq(known, disk)) {
                disks.push(Arc::clone(disk));
            }
        }
        let (done, ended) = mpsc::channel::<()>();
        let body = move || {
            let mut told = vec![0; disks.len()];
            while ended.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
                look(&disks, &mut told);
            }
            look(&disks, &mut told);
            disks.iter().zip(told).filter(|(_, told)| *told > SHOWN_MAX).for_each(
                |(disk, told)| {
                    let more = told - SHOWN_MAX;
                    note(&format!(
                        "drive {}: {more} more notes of this kind are not shown",
                        disk.name()
                    ));
                },
            );
        };
        // If the thread that prints the drives' messages cannot be started, no messages are shown.
        // The I/O continues.
        let thread = thread::Builder::new().name("millrace-news".to_owned()).spawn(body).ok();
        DriveNotes { done: Some(done), thread }
    }
}

impl Drop for DriveNotes {
    fn drop(&mut self) {
        self.done = None;
        if let Some(thread) = self.thread.take() {
            // Ignore a panic of the thread, which only prints notes.
            let _ = thread.join();
        }
    }
}

fn look(disks: &[Arc<Disk<Native>>], told: &mut [usize]) {
    for (disk, told) in disks.iter().zip(told) {
        for news in disk.take_news() {
            *told += 1;
            if *told <= SHOWN_MAX {
                note(&format!("drive {}: {news}", disk.name()));
            }
        }
    }
}

/// Writes a note in place of a progress bar, which is later drawn again below the note.
fn note(text: &str) {
    let wipe = if std::io::stderr().is_terminal() { "\r\x1b[K" } else { "" };
    millrace_console::tell!("{wipe}note: {text}");
}
