//! `Startup`: a start that a signal may end at any time, and the traces of it.
//!
//! The main thread opens and binds, and notes here each step and each file that it made; the
//! thread of signals ends it. First the drives' openings are told to give up, and the main thread
//! undoes its start; a step that goes on for more than a second, such as an open on a dead NFS, is
//! left where it is: files and sockets are removed and the process ends. Only the very files that
//! this start made are ever removed. Used by `serve` and drives.rs.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use anyhow::Context;
use millrace::Created;
use millrace_console::output_queue;
use millrace_drives::Cancel;
use millrace_exports::remove_socket_files;

use crate::verbs::serve::live::daemon::LiveDaemon;
use crate::views::Reload;

/// Longest time that the main thread may take to undo its start by itself.
const UNDO: Duration = Duration::from_secs(1);

/// A start, from the first drive until the daemon serves.
#[derive(Default)]
pub struct Startup {
    state: Mutex<StartState>,
    changed: Condvar,
    cancel: Cancel,
    /// The daemon, once it serves.
    daemon: OnceLock<Weak<LiveDaemon>>,
}

#[derive(Debug, Default)]
struct StartState {
    phase: StartPhase,
    /// The step that the main thread is at, in words.
    step: String,
    files: Created,
    folder: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum StartPhase {
    #[default]
    Opening,
    Stopped,
    Serving,
    /// Undone, since a signal or an error ended it.
    Over,
}

impl Startup {
    /// The flag that ends the opening of drives.
    pub fn cancel(&self) -> &Cancel {
        &self.cancel
    }

    /// The main thread comes to another step.
    ///
    /// # Errors
    /// If a signal has ended the start.
    pub fn step(&self, step: impl Into<String>) -> anyhow::Result<()> {
        let mut state = self.lock();
        state.step = step.into();
        match state.phase {
            StartPhase::Opening => Ok(()),
            _ => Err(anyhow::anyhow!("the start was stopped by a signal")),
        }
    }

    /// Makes a folder if it is missing; the folders above it must be there.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn make_folder(&self, folder: &Path) -> anyhow::Result<()> {
        if folder.is_dir() {
            return Ok(());
        }
        fs::create_dir(folder).with_context(|| {
            format!("cannot make the data folder {}; name another by --data-dir", folder.display())
        })?;
        self.lock().folder = Some(folder.to_owned());
        Ok(())
    }

    /// Notes files that were made.
    pub fn made(&self, mut files: Created) {
        self.lock().files.append(&mut files);
    }

    /// All stands: from now on files stay, and a signal stops a daemon that serves.
    ///
    /// # Errors
    /// If a signal has ended the start.
    pub fn serves(&self) -> anyhow::Result<()> {
        self.step("serving")?;
        let mut state = self.lock();
        // A signal may have come since.
        anyhow::ensure!(state.phase == StartPhase::Opening, "the start was stopped by a signal");
        state.phase = StartPhase::Serving;
        (state.files, state.folder) = (Created::default(), None);
        Ok(())
    }

    /// Removes what was made. The main thread calls it when everything else is dropped; gives the
    /// line to log if a signal has ended the start.
    pub fn undo(&self) -> Option<String> {
        let said = self.remove();
        let mut state = self.lock();
        let stopped = state.phase == StartPhase::Stopped;
        state.phase = StartPhase::Over;
        self.changed.notify_all();
        stopped.then_some(said)
    }

    /// From now on this daemon takes another configuration when it is asked by a signal.
    pub fn reload_by(&self, daemon: &Arc<LiveDaemon>) {
        let _ = self.daemon.set(Arc::downgrade(daemon));
    }

    /// Makes the daemon read its configuration again; the log says what came of it.
    pub fn reload(&self) {
        let Some(daemon) = self.daemon.get().and_then(Weak::upgrade) else {
            tracing::info!("SIGHUP is ignored: the daemon does not serve yet");
            return;
        };
        if let Err(refusal) = daemon.reloader().reload(&daemon, &Reload::default()) {
            tracing::error!("SIGHUP: nothing has changed: {}", refusal.message);
        }
    }

    /// Ends the start, if the daemon does not serve yet: returns when it does or when the main
    /// thread has undone the start, else ends the process.
    pub fn stop(&self) {
        let mut state = self.lock();
        if state.phase != StartPhase::Opening {
            return;
        }
        state.phase = StartPhase::Stopped;
        self.cancel.set();
        let is_stuck = |state: &mut StartState| state.phase == StartPhase::Stopped;
        let waited = self.changed.wait_timeout_while(state, UNDO, is_stuck);
        let (state, time) = waited.unwrap_or_else(PoisonError::into_inner);
        drop(state);
        if time.timed_out() {
            let said = self.remove();
            remove_socket_files();
            tracing::info!("{said}");
            output_queue::finish();
            std::process::exit(0);
        }
    }

    /// Removes what was made; what to say.
    fn remove(&self) -> String {
        let mut state = self.lock();
        let (mut files, folder) = (std::mem::take(&mut state.files), state.folder.take());
        let said = format!(
            "the start was stopped by a signal while {}; nothing was served, and what it had made is \
             removed",
            state.step
        );
        drop(state);
        files.remove();
        if let Some(folder) = folder {
            // Refused by the system if anything else is in it.
            let _ = fs::remove_dir(folder);
        }
        said
    }

    fn lock(&self) -> MutexGuard<'_, StartState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_that_is_stopped_is_undone_with_a_line_that_names_its_step() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("data");
        let startup = Startup::default();
        startup.make_folder(&folder).unwrap();
        startup.step("opening drive d0").unwrap();
        std::thread::scope(|scope| {
            let signals = scope.spawn(|| startup.stop());
            while startup.step("opening drive d1").is_ok() {
                std::thread::yield_now();
            }
            assert!(startup.cancel().is_set() && startup.serves().is_err());
            startup.step("opening drive d1").unwrap_err();
            let said = startup.undo().unwrap();
            assert!(said.contains("by a signal while opening drive d1;"), "{said}");
            signals.join().unwrap();
        });
        assert!(!folder.exists());
    }

    #[test]
    fn what_a_start_made_stays_once_it_serves_and_a_failed_start_says_nothing_of_signals() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("data");
        let startup = Startup::default();
        startup.make_folder(&folder).unwrap();
        startup.serves().unwrap();
        startup.stop();
        assert_eq!(startup.undo(), None);
        assert!(folder.exists() && !startup.cancel().is_set());
    }
}
