//! Files of directories: opened when clients ask for them, and closed when nobody uses them.
//!
//! The library opens and closes files (`millrace::Server::answer`); this thread of the daemon hands
//! it the clients' requests, since opening a file may take long, and has the views follow. It is
//! started with the first configuration that has a directory, and ends with the server; nobody
//! waits for it.

use std::sync::{OnceLock, Weak};
use std::time::{Duration, Instant};

use millrace::{ExportConfig, ExportRequests, FileChanges, OnDemand, Server};
use millrace_console::visible;
use millrace_machine::Native;

use super::daemon::LiveDaemon;
use super::dirty_marks::mark_caches;

/// Time between two looks at files that nobody uses.
const LOOK: Duration = Duration::from_secs(1);
/// Time between two looks while no file is open.
const IDLE_LOOK: Duration = Duration::from_secs(60);
/// Time for which a warning is not repeated.
const QUIET: Duration = Duration::from_secs(60);
/// Most warnings in that time.
const WARNINGS_MAX: usize = 32;

/// The thread that opens and closes files, once there is a directory.
pub struct OpenFilesThread {
    daemon: Weak<LiveDaemon>,
    started: OnceLock<()>,
}

impl OpenFilesThread {
    /// The thread of a daemon, which does not run yet.
    pub fn new(daemon: &Weak<LiveDaemon>) -> OpenFilesThread {
        OpenFilesThread { daemon: Weak::clone(daemon), started: OnceLock::new() }
    }

    /// Starts the thread if the server has a directory and the thread does not run yet.
    pub fn start_if_needed(&self, server: &Server) {
        let is_directory =
            |one: &ExportConfig| matches!(one.on_demand, Some(OnDemand::Directory(_)));
        if !server.configured().exports.iter().any(is_directory) {
            return;
        }
        self.started.get_or_init(|| {
            let (daemon, requests) = (Weak::clone(&self.daemon), server.servers().requests());
            let body = move || run(&daemon, &requests);
            if let Err(error) = Native::try_spawn("millrace-files", None, body) {
                tracing::error!("no files of directories can be opened: no thread for it: {error}");
            }
        });
    }
}

fn run(daemon: &Weak<LiveDaemon>, requests: &ExportRequests) {
    let (mut look, mut warnings) = (IDLE_LOOK, RecentWarnings::default());
    loop {
        let request = requests.next(look);
        let Some(daemon) = daemon.upgrade() else { return };
        let mut server = daemon.server();
        let Some(server) = server.as_mut() else { return };
        let marks = daemon.marks();
        let mut changes = match request {
            Some(request) => server.answer(request, &|more| mark_caches(more, marks)),
            None => FileChanges::default(),
        };
        // A recording keeps drives open.
        if !daemon.recording().is_active() {
            let closed = server.close_unused();
            changes.closed.extend(closed.closed);
            changes.failures.extend(closed.failures);
        }
        if changes.any() {
            daemon.follow(server);
            marks.remove(|name| server.configured().volume_number(name).is_none());
        }
        look = if server.has_open_files() { LOOK } else { IDLE_LOOK };
        changes.opened.iter().for_each(|name| tracing::debug!("export {}: opened", visible(name)));
        changes.closed.iter().for_each(|name| tracing::debug!("export {}: closed", visible(name)));
        for text in changes.failures.iter().filter(|text| warnings.is_new(text, Instant::now())) {
            tracing::warn!("{}", visible(text));
        }
    }
}

/// Warnings of the last minute: clients that try again and again do not fill the log.
#[derive(Default)]
struct RecentWarnings(Vec<(String, Instant)>);

impl RecentWarnings {
    /// Returns true if a warning is to be logged: once a minute, and not more than so many in all.
    fn is_new(&mut self, text: &str, now: Instant) -> bool {
        self.0.retain(|(_, since)| now - *since < QUIET);
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
        let later = start + QUIET;
        assert!(warnings.is_new("a", start) && !warnings.is_new("a", start));
        assert!(warnings.is_new("b", start) && warnings.is_new("a", later));
        let many = (0..WARNINGS_MAX).filter(|n| warnings.is_new(&n.to_string(), later));
        assert_eq!(many.count(), WARNINGS_MAX - 1);
    }
}
