//! `DriveNotes`: what drives have to say of their own accord while a verb does I/O on them, such as
//! that the server of an NBD drive is gone, or back.
//!
//! Runs on a thread of its own, which looks once a second and writes notes to standard error;
//! `serve` has its log for these. Made by verbs that open drives themselves; ends with its value,
//! after a last look.
#![allow(clippy::print_stderr)]

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use millrace::Volume;
use millrace_block::Disk;
use millrace_machine::Native;

/// How often it looks.
const PERIOD: Duration = Duration::from_secs(1);
/// Notes of one drive that are shown; those after them are counted.
const SHOWN_MAX: usize = 5;

/// A thread that tells what drives say.
pub struct DriveNotes {
    /// Dropped to end the thread.
    done: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl DriveNotes {
    /// Tells what the drives of volumes say until it is dropped; a volume may be named repeatedly.
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
                        "drive {}: {more} more notes like these are not shown",
                        disk.name()
                    ));
                },
            );
        };
        // Without a thread there are no notes; the I/O is what matters.
        let thread = thread::Builder::new().name("millrace-news".to_owned()).spawn(body).ok();
        DriveNotes { done: Some(done), thread }
    }
}

impl Drop for DriveNotes {
    fn drop(&mut self) {
        self.done = None;
        if let Some(thread) = self.thread.take() {
            // The thread has shown what there was, and a panic of it changes no result.
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

/// Writes a note over a bar that may stand there; the bar is drawn again below it.
fn note(text: &str) {
    let wipe = if std::io::stderr().is_terminal() { "\r\x1b[K" } else { "" };
    eprintln!("{wipe}note: {text}");
}
