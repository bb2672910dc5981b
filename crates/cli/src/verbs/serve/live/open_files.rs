//! Threads that open the files of directory exports for clients, and close unused files.
//!
//! The library defines the steps (`millrace::FileTask`, `millrace::ClosingFile`). One thread takes
//! the clients' requests, and one thread per directory executes the steps that access its file
//! system. So a file system that hangs blocks neither other directories, nor changes of the
//! configuration, nor the end of the daemon. The threads start when first needed and end with the
//! server; no thread waits for them.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use millrace::{ClosingFile, ExportRequests, FileChanges, FileTask, Server};
use millrace_console::visible;
use millrace_machine::{Native, lock_unpoisoned};

use super::daemon::LiveDaemon;
use super::dirty_marks::mark_caches;

const LOOK: Duration = Duration::from_secs(1);
const IDLE_LOOK: Duration = Duration::from_secs(60);
const REPEAT_AFTER: Duration = Duration::from_secs(60);
const WARNINGS_MAX: usize = 32;
/// Maximum number of jobs that wait for a directory's thread. Further clients are refused.
const TASKS_MAX: usize = 4096;
/// Delay after which reports show that a file was opened or closed, even if the directory's thread
/// has further jobs. The job in progress ends first. Without further jobs, the reports are updated
/// at once.
const FOLLOW: Duration = Duration::from_millis(100);

pub struct OpenFilesThreads {
    daemon: Weak<LiveDaemon>,
    started: OnceLock<()>,
    directories: Mutex<HashMap<String, SyncSender<FileJob>>>,
    warnings: Mutex<RecentWarnings>,
}

enum FileJob {
    Task(Box<FileTask>),
    Close(ClosingFile),
}

impl OpenFilesThreads {
    pub fn new(daemon: &Weak<LiveDaemon>) -> OpenFilesThreads {
        OpenFilesThreads {
            daemon: Weak::clone(daemon),
            started: OnceLock::new(),
            directories: Mutex::default(),
            warnings: Mutex::default(),
        }
    }

    pub fn start_if_needed(&self, server: &Server) {
        if server.configured().exports.iter().all(|one| one.directory().is_none()) {
            return;
        }
        self.started.get_or_init(|| {
            let (daemon, requests) = (Weak::clone(&self.daemon), server.servers().requests());
            let body = move || take_requests(&daemon, &requests);
            if let Err(error) = Native::try_spawn("millrace-files", None, body) {
                tracing::error!(
                    "no file of a directory can be opened, because its thread cannot \
                                 be started: {error}"
                );
            }
        });
    }

    /// Queues a job for the thread of its directory. Returns the job if the thread's queue is full
    /// or no thread can be started. Dropping a returned `FileJob::Task` refuses the client.
    fn give(&self, directory: &str, job: FileJob) -> Option<FileJob> {
        let mut directories = lock_unpoisoned(&self.directories);
        if !directories.contains_key(directory) {
            let (jobs, to_do) = sync_channel(TASKS_MAX);
            let daemon = Weak::clone(&self.daemon);
            let body = move || do_jobs(&daemon, &to_do);
            if let Err(error) = Native::try_spawn("millrace-files", None, body) {
                self.warn(&format!(
                    "export {directory}: cannot start the thread that opens its files: {error}"
                ));
                return Some(job);
            }
            directories.insert(directory.to_owned(), jobs);
        }
        let refused = directories[directory].try_send(job).err()?;
        self.warn(&format!(
            "export {directory}: its file system answers too slowly, so clients are refused"
        ));
        let (TrySendError::Full(job) | TrySendError::Disconnected(job)) = refused;
        Some(job)
    }

    fn warn(&self, text: &str) {
        let mut warnings = lock_unpoisoned(&self.warnings);
        if warnings.is_new(text, Instant::now()) {
            tracing::warn!("{}", visible(text));
        }
    }

    fn log(&self, changes: &FileChanges) {
        changes.opened.iter().for_each(|name| tracing::debug!("export {}: opened", visible(name)));
        changes.closed.iter().for_each(|name| tracing::debug!("export {}: closed", visible(name)));
        changes.failures.iter().for_each(|text| self.warn(text));
    }
}

fn take_requests(daemon: &Weak<LiveDaemon>, requests: &ExportRequests) {
    let (mut look, mut looked) = (IDLE_LOOK, Instant::now());
    loop {
        let request = requests.next(look);
        let Some(daemon) = daemon.upgrade() else { return };
        let mut server = daemon.server();
        let Some(server) = server.as_mut() else { return };
        let task = request.and_then(|request| server.answer(request));
        // A trace recording keeps drives open, so unused files are closed only after the recording
        // ends.
        let unused = match looked.elapsed() >= LOOK && !daemon.recording.is_active() {
            true => server.unused_files(),
            false => Vec::new(),
        };
        if looked.elapsed() >= LOOK {
            looked = Instant::now();
        }
        look = if server.has_open_files() || task.is_some() { LOOK } else { IDLE_LOOK };
        if let Some(task) = task {
            next_step(&daemon, task, server);
        }
        for closing in unused {
            let directory = closing.directory().to_owned();
            let refused = daemon.open_files.give(&directory, FileJob::Close(closing));
            // If the directory's job queue is full, a later check for unused files tries to close
            // the file.
            if let Some(FileJob::Close(closing)) = refused {
                server.close(closing);
            }
        }
    }
}

/// Hands the next step of a task (opening a file for a client) to the thread that works on the
/// file's directory. A task without further steps ends and answers its client.
fn next_step(daemon: &LiveDaemon, task: FileTask, server: &mut Server) {
    let directory = task.directory().map(str::to_owned);
    match directory {
        Some(directory) => drop(daemon.open_files.give(&directory, FileJob::Task(Box::new(task)))),
        None => {
            let marks = &daemon.marks;
            let changes = server.finish(task, &|more| mark_caches(more, marks));
            daemon.open_files.log(&changes);
        }
    }
}

fn do_jobs(daemon: &Weak<LiveDaemon>, to_do: &Receiver<FileJob>) {
    // Time of the first change of the open files since the daemon's reports were last updated.
    let mut behind: Option<Instant> = None;
    // True if files were closed since the current `ServedLists` was made. That list may still keep
    // their drives open.
    let mut keep_drives = false;
    loop {
        let wait = if behind.is_some() { Duration::ZERO } else { IDLE_LOOK };
        let mut job = match to_do.recv_timeout(wait) {
            Ok(job) => Some(job),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let is_last = job.is_none();
        match &mut job {
            Some(FileJob::Task(task)) => {
                {
                    let Some(daemon) = daemon.upgrade() else { return };
                    let server = daemon.server();
                    let Some(server) = server.as_ref() else { return };
                    if std::mem::take(&mut keep_drives) {
                        behind = None;
                        follow(&daemon, server);
                    }
                    task.prepare_step(server);
                }
                task.step();
            }
            Some(FileJob::Close(closing)) => closing.flush(),
            None => {}
        }
        let Some(daemon) = daemon.upgrade() else { return };
        let mut server = daemon.server();
        let Some(server) = server.as_mut() else { return };
        let open_before = server.configured().exports.len();
        match job {
            Some(FileJob::Task(task)) => next_step(&daemon, *task, server),
            Some(FileJob::Close(closing)) => {
                let changes = server.close(closing);
                keep_drives |= !changes.closed.is_empty();
                daemon.open_files.log(&changes);
            }
            None => {}
        }
        if server.configured().exports.len() != open_before {
            behind.get_or_insert(Instant::now());
        }
        if behind.is_some_and(|since| is_last || since.elapsed() >= FOLLOW) {
            (behind, keep_drives) = (None, false);
            follow(&daemon, server);
        }
    }
}

fn follow(daemon: &LiveDaemon, server: &Server) {
    daemon.follow(server);
    daemon.marks.remove(|name| server.configured().volume_number(name).is_none());
}

#[derive(Default)]
struct RecentWarnings(Vec<(String, Instant)>);

impl RecentWarnings {
    fn is_new(&mut self, text: &str, now: Instant) -> bool {
        self.0.retain(|(_, since)| now - *since < REPEAT_AFTER);
        let is_new = self.0.len() < WARNINGS_MAX && !self.0.iter().any(|(known, _)| known == text);
        if is_new {
            self.0.push((text.to_owned(), now));
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_is_logged_once_a_minute() {
        let (mut warnings, start) = (RecentWarnings::default(), Instant::now());
        let later = start + REPEAT_AFTER;
        assert!(warnings.is_new("a", start) && !warnings.is_new("a", start));
        assert!(warnings.is_new("b", start) && warnings.is_new("a", later));
        let many = (0..WARNINGS_MAX).filter(|n| warnings.is_new(&n.to_string(), later));
        assert_eq!(many.count(), WARNINGS_MAX - 1);
    }
}
