//! `StartProgress`: state of a start, which a signal may end at any time.
//!
//! The main thread records each step and each file that it created. On a signal, the signal thread
//! makes the opening of drives fail, then waits up to a second for the main thread to undo the
//! start. If a step takes longer, such as an open on a dead NFS server, the signal thread removes
//! files and sockets itself and exits the process. A start removes only files that it created.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use anyhow::Context;
use millrace::Created;
use millrace_console::output_queue;
use millrace_drives::Cancel;
use millrace_exports::remove_socket_files;
use millrace_machine::lock_unpoisoned;

use crate::verbs::serve::live::daemon::LiveDaemon;
use crate::views::Reload;

/// Maximum time for which the signal thread waits while the main thread undoes the start.
const UNDO: Duration = Duration::from_secs(1);

#[derive(Default)]
pub struct StartProgress {
    state: Mutex<StartState>,
    changed: Condvar,
    cancel: Cancel,
    daemon: OnceLock<Weak<LiveDaemon>>,
}

#[derive(Debug, Default)]
struct StartState {
    phase: StartPhase,
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
    Over,
}

impl StartProgress {
    pub fn cancel(&self) -> &Cancel {
        &self.cancel
    }

    /// Records the step that the main thread begins. Fails if a signal has ended the start.
    pub fn step(&self, step: impl Into<String>) -> anyhow::Result<()> {
        self.begin(step.into()).map(drop)
    }

    fn begin(&self, step: String) -> anyhow::Result<MutexGuard<'_, StartState>> {
        let mut state = self.lock();
        state.step = step;
        anyhow::ensure!(state.phase == StartPhase::Opening, "the start was stopped by a signal");
        Ok(state)
    }

    /// Creates a directory if it is missing. Its parent must exist.
    pub fn make_folder(&self, folder: &Path) -> anyhow::Result<()> {
        if folder.is_dir() {
            return Ok(());
        }
        fs::create_dir(folder).with_context(|| {
            format!(
                "cannot create the data directory {}; choose another one with --data-dir",
                folder.display()
            )
        })?;
        self.lock().folder = Some(folder.to_owned());
        Ok(())
    }

    pub fn made(&self, mut files: Created) {
        self.lock().files.append(&mut files);
    }

    /// Ends the start successfully. Created files stay. From now on, a stop signal ends the running
    /// daemon instead of cancelling the start.
    pub fn serves(&self) -> anyhow::Result<()> {
        let mut state = self.begin("serving".to_owned())?;
        state.phase = StartPhase::Serving;
        (state.files, state.folder) = (Created::default(), None);
        Ok(())
    }

    /// Removes all created files. The main thread calls this after it has dropped all drives and
    /// sockets. Returns the line to log if a signal has ended the start.
    pub fn undo(&self) -> Option<String> {
        let said = self.remove();
        let mut state = self.lock();
        let stopped = state.phase == StartPhase::Stopped;
        state.phase = StartPhase::Over;
        self.changed.notify_all();
        stopped.then_some(said)
    }

    pub fn reload_by(&self, daemon: &Arc<LiveDaemon>) {
        let _ = self.daemon.set(Arc::downgrade(daemon));
    }

    pub fn reload(&self) {
        let Some(daemon) = self.daemon.get().and_then(Weak::upgrade) else {
            tracing::info!("SIGHUP is ignored: the daemon does not serve yet");
            return;
        };
        if let Err(refusal) = daemon.reloader.reload(&daemon, &Reload::default()) {
            tracing::error!("SIGHUP: nothing has changed: {}", refusal.message);
        }
    }

    /// Ends a start in progress, and returns when the main thread has undone the start. Returns at
    /// once if no start is in progress, as when the daemon already serves. If the main thread takes
    /// too long, undoes the start itself and exits the process.
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

    fn remove(&self) -> String {
        let mut state = self.lock();
        let (mut files, folder) = (std::mem::take(&mut state.files), state.folder.take());
        let said = format!(
            "the start was stopped by a signal while {}; nothing was served, and created files \
             and sockets are removed",
            state.step
        );
        drop(state);
        files.remove();
        if let Some(folder) = folder {
            // The directory stays if it contains other files.
            let _ = fs::remove_dir(folder);
        }
        said
    }

    fn lock(&self) -> MutexGuard<'_, StartState> {
        lock_unpoisoned(&self.state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stopped_start_is_undone_and_names_its_step() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("data");
        let startup = StartProgress::default();
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
    fn sockets_of_a_start_stay_and_a_failed_start_is_quiet() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("data");
        let startup = StartProgress::default();
        startup.make_folder(&folder).unwrap();
        startup.serves().unwrap();
        startup.stop();
        assert_eq!(startup.undo(), None);
        assert!(folder.exists() && !startup.cancel().is_set());
    }
}
