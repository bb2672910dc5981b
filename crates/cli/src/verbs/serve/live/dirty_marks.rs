//! `DirtyMarks`: a file that tells the next daemon which caches were dirty when this one died.
//!
//! `DirtyMarks` owns the directory of `[server] state`, which it locks, and the file `caches` in
//! it. The file has a line for each write-back cache: `clean "v"` until its first write is about to
//! be acknowledged from memory, then `dirty "v"` until a clean stop. The word is overwritten in
//! place, so that setting a mark needs no free space; every other change replaces the file. A line
//! `lost  "v"` means that an earlier daemon died while the cache was dirty, and that the operator
//! has not acknowledged this with `millrace ctl acknowledge` yet.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use millrace::Cache;
use millrace_console::shell_word;
use millrace_drives::flock_holder;
use millrace_machine::{Native, lock_unpoisoned};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};

use crate::views::Refusal;

const FILE: &str = "caches";
const HEADER: &str = "# millrace: caches that were dirty when a daemon ended; see docs/cache.md\n";
const LOCK_TRIES: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(25);
/// Maximum number of bytes read from the file `caches`: enough for a hundred thousand volumes.
const BYTES_MAX: u64 = 16 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CacheMark {
    Clean,
    Dirty,
    Lost,
}

impl CacheMark {
    /// Returns the first word of a cache's line in the file `caches`. All words are equally long,
    /// so one can overwrite another.
    fn word(self) -> &'static str {
        match self {
            CacheMark::Clean => "clean",
            CacheMark::Dirty => "dirty",
            CacheMark::Lost => "lost ",
        }
    }
}

#[derive(Debug, Default)]
pub struct DirtyMarks(Option<Mutex<MarkFile>>);

#[derive(Debug)]
struct MarkFile {
    path: PathBuf,
    /// Directory of `file`. The lock on the directory lasts as long as this descriptor is open.
    folder: File,
    file: File,
    volumes: Vec<(String, CacheMark)>,
    is_current: bool,
    is_settled: bool,
}

impl Drop for MarkFile {
    /// Removes the `clean` lines of this daemon after a failed start. Lines about earlier daemons
    /// stay.
    fn drop(&mut self) {
        if !self.is_settled && self.volumes.iter().all(|(_, mark)| *mark != CacheMark::Dirty) {
            self.settle(|_| true);
        }
    }
}

impl MarkFile {
    fn is_kept(&self) -> bool {
        self.is_current && is_at(&self.file, &self.path)
    }

    /// Replaces the file `caches` by a new file, which has a mark for each volume. Fails if the
    /// path of the state directory no longer leads to the directory that this daemon has locked,
    /// because another daemon may own the directory that is there now.
    fn write(&mut self) -> anyhow::Result<()> {
        let folder = self.path.parent().unwrap_or(Path::new("."));
        self.is_current = false;
        if !is_at(&self.folder, folder) {
            bail!("{}: this directory was removed, moved or replaced", folder.display());
        }
        self.file = replace(&self.path, &self.folder, &self.volumes)?;
        self.is_current = true;
        Ok(())
    }

    fn settle(&mut self, is_lost: impl Fn(&str) -> bool) {
        let was_kept = self.is_kept();
        self.is_settled = true;
        self.volumes.retain(|(name, mark)| match mark {
            CacheMark::Clean => false,
            CacheMark::Dirty => is_lost(name),
            CacheMark::Lost => true,
        });
        let path = self.path.display().to_string();
        if self.volumes.is_empty() {
            // Only this daemon's own file is removed, because another daemon may have put a file at
            // this path.
            let removed = match is_at(&self.file, &self.path) {
                true => fs::remove_file(&self.path).and_then(|()| self.folder.sync_all()),
                false => Ok(()),
            };
            if let Err(error) = removed {
                tracing::warn!(
                    "{path}: cannot be removed: {error}; the next start warns of volumes that have \
                     lost nothing"
                );
            }
            return;
        }
        match self.write() {
            Ok(()) => {}
            Err(error) if was_kept => tracing::warn!(
                "{path}: cannot be brought up to date: {error:#}; the next start warns of volumes that \
                 have lost nothing, too"
            ),
            Err(error) => {
                let names: Vec<_> = self.volumes.iter().map(|(name, _)| name.as_str()).collect();
                tracing::error!(
                    "{path}: cannot be written: {error:#}; the next start will not warn that \
                     writes of {} may be lost",
                    names.join(", ")
                );
            }
        }
    }
}

impl DirtyMarks {
    /// Locks the directory `path` and replaces its file `caches`. Keeps the entries for caches that
    /// an earlier daemon left dirty, and adds an entry for each of `volumes`, marked as clean.
    pub fn open<'a>(
        path: &Path,
        volumes: impl Iterator<Item = &'a str>,
    ) -> anyhow::Result<DirtyMarks> {
        let folder = locked(path)?;
        let path = path.join(FILE);
        let mut all = earlier(&path)?;
        all.extend(volumes.map(|volume| (volume.to_owned(), CacheMark::Clean)));
        let file = replace(&path, &folder, &all)?;
        let marks =
            MarkFile { path, folder, file, volumes: all, is_current: true, is_settled: false };
        Ok(DirtyMarks(Some(Mutex::new(marks))))
    }

    pub fn lost(&self) -> Vec<String> {
        let Some(marks) = self.lock() else { return Vec::new() };
        let is_lost = |(_, mark): &&(String, CacheMark)| *mark == CacheMark::Lost;
        marks.volumes.iter().filter(is_lost).map(|(volume, _)| volume.clone()).collect()
    }

    pub fn add<'a>(&self, volumes: impl Iterator<Item = &'a str>) -> anyhow::Result<()> {
        let Some(mut marks) = self.lock() else { return Ok(()) };
        let before = marks.volumes.len();
        marks.volumes.extend(volumes.map(|volume| (volume.to_owned(), CacheMark::Clean)));
        if marks.volumes.len() == before {
            return Ok(());
        }
        marks.write().inspect_err(|_| marks.volumes.truncate(before))
    }

    /// Removes the marks of closed volumes, because their caches no longer hold dirty data. Keeps
    /// marks that earlier daemons have left.
    pub fn remove(&self, is_closed: impl Fn(&str) -> bool) {
        let Some(mut marks) = self.lock() else { return };
        let before = marks.volumes.len();
        marks.volumes.retain(|(name, mark)| *mark == CacheMark::Lost || !is_closed(name));
        if marks.volumes.len() < before
            && let Err(error) = marks.write()
        {
            tracing::warn!(
                "cannot remove the record of a closed volume's cache: {error:#}; the next start \
                 may warn of lost data"
            );
        }
    }

    /// Registers [`mark`](Self::mark) as the first-dirty callback of each cache. A cache runs the
    /// callback before it answers its first write from memory.
    pub fn keep_for<'a>(self: &Arc<Self>, caches: impl Iterator<Item = &'a Arc<Cache<Native>>>) {
        for cache in caches.filter(|_| self.0.is_some()) {
            let (marks, volume) = (Arc::clone(self), cache.below().name().to_owned());
            cache.before_first_dirty(Arc::new(move || marks.mark(&volume)));
        }
    }

    /// Marks a volume as dirty, durably, unless it is marked already.
    pub fn mark(&self, volume: &str) {
        let Some(mut marks) = self.lock() else { return };
        let is_it =
            |(name, mark): &(String, CacheMark)| name == volume && *mark == CacheMark::Clean;
        let Some(index) = marks.volumes.iter().position(is_it) else { return };
        let before = marks.volumes[..index].iter().map(|(name, mark)| line(name, *mark).len());
        let at = (HEADER.len() + before.sum::<usize>()) as u64;
        marks.volumes[index].1 = CacheMark::Dirty;
        let written = if marks.is_kept() {
            let written = marks.file.write_all_at(CacheMark::Dirty.word().as_bytes(), at);
            let written = written.and_then(|()| marks.file.sync_data());
            written.with_context(|| format!("{}: cannot be written", marks.path.display()))
        } else {
            marks.write()
        };
        if let Err(error) = written {
            marks.is_current = false;
            tracing::error!(
                volume,
                "volume {volume}: the mark of its dirty cache cannot be made: {error:#}; if the daemon \
                 dies, the next one will not warn that writes may be lost"
            );
        }
    }

    /// Writes the file `caches` again if it was removed or replaced, or if an earlier write failed.
    /// Logs a failure once.
    pub fn look(&self) {
        let Some(mut marks) = self.lock().filter(|it| !it.is_settled && !it.is_kept()) else {
            return;
        };
        let (was_current, path) = (marks.is_current, marks.path.display().to_string());
        match marks.write() {
            Ok(()) if was_current => tracing::warn!(
                "{path}: this file was removed or replaced while the daemon runs; it is created \
                 again, with the marks of all volumes"
            ),
            Ok(()) => tracing::info!("{path}: up to date again"),
            Err(error) if was_current => tracing::error!(
                "state: {error:#}; marks of dirty caches are lost: if the daemon dies, the next \
                 one will not warn that writes may be lost; restore the directory, or restart the \
                 daemon with another one"
            ),
            Err(_) => {}
        }
    }

    pub fn acknowledge(&self, volume: &str) -> Result<(), Refusal> {
        let unknown = || {
            let lost: Vec<String> = self.lost().iter().map(|name| format!("{name:?}")).collect();
            let text = match lost.as_slice() {
                [] => "no volume has a data loss to acknowledge".to_owned(),
                lost => format!(
                    "volume {volume:?} has no data loss to acknowledge; volumes with data loss: {}",
                    lost.join(", ")
                ),
            };
            Refusal::new("bad-request", text)
        };
        let is_it = |(name, mark): &(String, CacheMark)| name == volume && *mark == CacheMark::Lost;
        let marks = self.lock().filter(|marks| marks.volumes.iter().any(is_it));
        let mut marks = marks.ok_or_else(unknown)?;
        let before = marks.volumes.clone();
        marks.volumes.retain(|one| !is_it(one));
        marks.write().map_err(|error| {
            marks.volumes = before;
            Refusal::new("io", format!("{error:#}"))
        })
    }

    pub fn settle(&self, is_lost: impl Fn(&str) -> bool) {
        if let Some(mut marks) = self.lock() {
            marks.settle(is_lost);
        }
    }

    fn lock(&self) -> Option<MutexGuard<'_, MarkFile>> {
        Some(lock_unpoisoned(self.0.as_ref()?))
    }
}

pub fn warning(volume: &str) -> String {
    let dashes = if volume.starts_with('-') { "-- " } else { "" };
    format!(
        "volume {volume}: the last daemon ended with a dirty cache of it: writes that were \
         acknowledged but not flushed may be lost, and NBD clients that reconnected were not told \
         (a guest's next \
         flush over vhost-user-blk fails once); check the volume's contents (fsck, the database's \
         own check), then `millrace ctl acknowledge {dashes}{}`",
        shell_word(volume)
    )
}

/// Returns the volumes whose caches an earlier daemon left dirty. Changes nothing.
pub fn check(folder: &Path) -> anyhow::Result<Vec<String>> {
    let shown = folder.display();
    let open = locked(folder)?;
    if let Err(error) = rustix::fs::access(folder, rustix::fs::Access::WRITE_OK) {
        return Err(unwritable(&folder.join(FILE), &io::Error::from(error)));
    }
    if rustix::fs::fstatvfs(&open).is_ok_and(|found| found.f_bavail == 0) {
        bail!("{shown}: {}", advice(io::ErrorKind::StorageFull));
    }
    Ok(earlier(&folder.join(FILE))?.into_iter().map(|(volume, _)| volume).collect())
}

fn locked(path: &Path) -> anyhow::Result<File> {
    let shown = path.display();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let folder = match open(path, flags, Mode::empty()) {
        Ok(folder) => File::from(folder),
        Err(rustix::io::Errno::NOENT) => {
            bail!("{shown}: this directory does not exist; create it, as with `mkdir {shown}`")
        }
        Err(rustix::io::Errno::NOTDIR) => {
            bail!("{shown}: this is not a directory; name a directory")
        }
        Err(error) => bail!("{shown}: cannot open this directory: {error}"),
    };
    let lock = || flock(&folder, FlockOperation::NonBlockingLockExclusive);
    // A `--check` in another process locks the directory only briefly, so a busy lock is tried
    // again.
    let (mut done, mut tries) = (lock(), 0..LOCK_TRIES);
    while done == Err(rustix::io::Errno::WOULDBLOCK) && tries.next().is_some() {
        thread::sleep(LOCK_PAUSE);
        done = lock();
    }
    match done {
        Ok(()) => Ok(folder),
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let holder = flock_holder(&folder);
            let holder = holder.map_or_else(|| "another daemon".to_owned(), |one| one.to_string());
            bail!("{shown}: in use by {holder}; give each daemon a directory of its own")
        }
        Err(error) => bail!(
            "{shown}: cannot lock this directory: {error}; choose a directory on a local file \
             system"
        ),
    }
}

fn earlier(path: &Path) -> anyhow::Result<Vec<(String, CacheMark)>> {
    let shown = path.display();
    let mut options = File::options();
    let file = match millrace_drives::open_store(path, options.read(true), 0) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => bail!("{shown}: cannot be read: {error}"),
    };
    let mut text = String::new();
    let read = file.take(BYTES_MAX).read_to_string(&mut text);
    read.with_context(|| format!("{shown}: cannot be read"))?;
    let remedy = "if another program wrote the file, name another directory, else check all \
                  volumes and \
                  remove the file";
    let mut found: Vec<(String, CacheMark)> = Vec::new();
    if text.split_inclusive('\n').next().is_none_or(|line| line != HEADER) {
        let what = if text.is_empty() { "this file is empty" } else { "its first line is damaged" };
        bail!("{shown}: {what}, so it is unknown which caches were dirty; {remedy}");
    }
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.starts_with('#')) {
        let (word, name) =
            line.split_at_checked(CacheMark::Lost.word().len()).unwrap_or((line, ""));
        let name: String = serde_json::from_str(name.trim()).map_err(|_| {
            anyhow!("{shown}:{number}: this line does not name a cache and its state; {remedy}")
        })?;
        // Every line whose first word is not `clean` counts as dirty, because the daemon may have
        // died while it overwrote `clean` with `dirty`.
        let is_known = |known: &(String, CacheMark)| known.0 == name;
        if word != CacheMark::Clean.word() && !found.iter().any(is_known) {
            found.push((name, CacheMark::Lost));
        }
    }
    Ok(found)
}

fn line(volume: &str, mark: CacheMark) -> String {
    format!("{} {}\n", mark.word(), serde_json::Value::from(volume))
}

fn replace(path: &Path, folder: &File, volumes: &[(String, CacheMark)]) -> anyhow::Result<File> {
    let new = path.with_extension("new");
    let write = || -> io::Result<File> {
        let mut file = File::create(&new)?;
        let lines = volumes.iter().map(|(volume, mark)| line(volume, *mark));
        let text = HEADER.to_owned() + &lines.collect::<String>();
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, path)?;
        folder.sync_all()?;
        Ok(file)
    };
    write().map_err(|error| {
        let _ = fs::remove_file(&new);
        unwritable(path, &error)
    })
}

fn is_at(file: &File, path: &Path) -> bool {
    let place = |meta: fs::Metadata| (meta.dev(), meta.ino());
    let [open, there] = [file.metadata(), fs::metadata(path)].map(|meta| meta.ok().map(place));
    open.is_some() && open == there
}

fn unwritable(path: &Path, error: &io::Error) -> anyhow::Error {
    anyhow!("{}: cannot be written: {error}: {}", path.display(), advice(error.kind()))
}

fn advice(kind: io::ErrorKind) -> &'static str {
    match kind {
        io::ErrorKind::StorageFull => {
            "its file system is full; free some space, or choose another directory"
        }
        io::ErrorKind::ReadOnlyFilesystem => {
            "its file system is mounted read-only; mount it for writing, or choose another \
             directory"
        }
        io::ErrorKind::PermissionDenied => {
            "the daemon's user may not write to the directory; change its mode, or choose another \
             directory"
        }
        _ => "choose another directory",
    }
}

pub fn mark_caches(more: &millrace::Opened, marks: &Arc<DirtyMarks>) -> Result<(), String> {
    let caches = || more.caches.iter().map(|(cache, _)| cache);
    marks.add(caches().map(|cache| cache.below().name())).map_err(|error| format!("{error:#}"))?;
    marks.keep_for(caches());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open_in(folder: &Path, volumes: &[&str]) -> anyhow::Result<DirtyMarks> {
        DirtyMarks::open(folder, volumes.iter().copied())
    }

    #[test]
    fn daemon_that_dies_leaves_marks_of_volumes_that_were_dirty() {
        let dir = tempfile::tempdir().unwrap();
        let volumes = ["a", "b \"\u{e9}\"", "c"];
        let marks = open_in(dir.path(), &volumes).unwrap();
        assert_eq!(marks.lost(), [""; 0]);
        marks.mark("b \"\u{e9}\"");
        marks.mark("b \"\u{e9}\"");
        marks.mark("unknown");
        // Without `settle`, as after a kill.
        drop(marks);
        let marks = open_in(dir.path(), &volumes).unwrap();
        assert_eq!(marks.lost(), ["b \"\u{e9}\""]);
        // A second death in the same way, with another volume besides.
        marks.mark("c");
        marks.mark("b \"\u{e9}\"");
        drop(marks);
        assert_eq!(check(dir.path()).unwrap(), ["b \"\u{e9}\"", "c"]);
        let marks = open_in(dir.path(), &["a"]).unwrap();
        assert_eq!(marks.lost(), ["b \"\u{e9}\"", "c"], "volumes of another name stay");
        marks.acknowledge("c").unwrap();
        let text = marks.acknowledge("a").unwrap_err().message;
        assert_eq!(
            text,
            "volume \"a\" has no data loss to acknowledge; volumes with data loss: \
             \"b \\\"\u{e9}\\\"\""
        );
        marks.mark("a");
        marks.settle(|_| false);
        drop(marks);
        let marks = open_in(dir.path(), &["a"]).unwrap();
        assert_eq!(marks.lost(), ["b \"\u{e9}\""], "a clean stop acknowledges nothing");
        marks.acknowledge("b \"\u{e9}\"").unwrap();
        marks.settle(|_| false);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn acknowledging_command_can_be_pasted_for_any_volume_name() {
        let command = |volume: &str| {
            let text = warning(volume);
            text.split('`').nth(1).unwrap().replace("millrace ctl acknowledge ", "")
        };
        assert_eq!(["vol0", "a\"b c", "-x"].map(command), ["vol0", "'a\"b c'", "-- -x"]);
    }

    #[test]
    fn a_stop_keeps_the_marks_of_volumes_that_lost_something_only() {
        let dir = tempfile::tempdir().unwrap();
        let marks = open_in(dir.path(), &["a", "b", "c"]).unwrap();
        marks.mark("a");
        marks.mark("b");
        marks.settle(|volume| volume == "b" || volume == "c");
        drop(marks);
        assert_eq!(open_in(dir.path(), &["a"]).unwrap().lost(), ["b"]);
    }

    #[test]
    fn a_folder_that_cannot_be_used_is_refused_with_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let said = |path: &Path| {
            let [one, two] = [open_in(path, &["a"]).err(), check(path).err()];
            let [one, two] = [one, two].map(|error| format!("{:#}", error.unwrap()));
            assert_eq!(one, two);
            one
        };
        assert!(said(&dir.path().join("no")).contains("this directory does not exist; create it"));
        fs::write(dir.path().join("caches"), HEADER.to_owned() + "what is this\n").unwrap();
        assert!(said(&dir.path().join("caches")).contains("this is not a directory"));
        assert!(
            said(dir.path()).contains("caches:2: this line does not name a cache and its state")
        );
        for damaged in ["clean \"a\"\n", &HEADER[..9], "\0\0\0"] {
            fs::write(dir.path().join("caches"), damaged).unwrap();
            assert!(
                said(dir.path()).contains("caches: its first line is damaged, so it is unknown")
            );
        }
        fs::write(dir.path().join("caches"), "").unwrap();
        assert!(said(dir.path()).contains("caches: this file is empty, so it is unknown which"));
        fs::remove_file(dir.path().join("caches")).unwrap();
        let _marks = open_in(dir.path(), &["a"]).unwrap();
        assert!(said(dir.path()).contains("in use by process "));
    }

    #[test]
    fn a_word_that_is_half_written_counts_as_dirty() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("caches"), HEADER.to_owned() + "clean \"a\"\ndiean \"b\"\n")
            .unwrap();
        assert_eq!(check(dir.path()).unwrap(), ["b"]);
    }

    #[test]
    fn removed_file_is_made_anew_and_other_folders_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("st");
        fs::create_dir(&folder).unwrap();
        let marks = open_in(&folder, &["a", "b", "c"]).unwrap();
        marks.mark("a");
        fs::remove_file(folder.join(FILE)).unwrap();
        marks.mark("b");
        let text = || fs::read_to_string(folder.join(FILE)).unwrap_or_default();
        assert!(text().ends_with("dirty \"a\"\ndirty \"b\"\nclean \"c\"\n"), "{}", text());
        fs::remove_file(folder.join(FILE)).unwrap();
        marks.look();
        assert!(text().ends_with("dirty \"b\"\nclean \"c\"\n"), "{}", text());
        // Of another daemon, as far as this one knows.
        fs::rename(&folder, dir.path().join("old")).unwrap();
        fs::create_dir(&folder).unwrap();
        let other = open_in(&folder, &["x"]).unwrap();
        let before = text();
        marks.mark("c");
        marks.look();
        assert!(marks.lock().is_some_and(|marks| !marks.is_kept()));
        marks.settle(|volume| volume == "a");
        assert_eq!(text(), before);
        other.settle(|_| false);
    }

    #[test]
    fn a_file_system_that_is_read_only_is_called_that() {
        let error = io::Error::from(rustix::io::Errno::ROFS);
        let said = unwritable(Path::new("st/caches"), &error).to_string();
        let expected = "st/caches: cannot be written: Read-only file system (os error 30): its file \
                        system is mounted read-only; mount it for writing, or choose another \
                        directory";
        assert_eq!(said, expected);
    }

    #[test]
    fn without_a_folder_nothing_is_kept() {
        let marks = DirtyMarks::default();
        marks.mark("a");
        marks.settle(|_| true);
        assert!(marks.lost().is_empty() && marks.acknowledge("a").is_err());
    }
}
