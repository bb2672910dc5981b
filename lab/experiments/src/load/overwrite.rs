//! Protection of existing data: a run writes to a drive or a server's disk that may hold data only
//! with `--overwrite`.
//!
//! The following count as empty: drives that keep their data in memory or not at all, files that
//! the run will create or that consist of holes, and Ceph images and NBD exports that report all
//! their blocks as zeroes. Other servers' disks are searched for data (probe.rs). Block devices and
//! files with data never count as empty. The check is made before the run opens its drives, so that
//! data written by the run itself is not found. The verbs `bench` and `replay` call this file.

mod marks;
mod probe;
mod servers;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;

use millrace_block::Driver;
use millrace_drives::Spec;
use millrace_machine::Native;
use millrace_nbd::client::NbdUri;
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use crate::load::bench::BenchError;

pub(crate) use servers::{guest_contents, nbd_contents};

/// Contents of a drive that a write would destroy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum DiskContents {
    /// The drive holds no data, or accepts no writes.
    #[default]
    Empty,
    /// The drive may hold data. The field is a text that follows the drive's name in an error
    /// message, such as `holds data`.
    Data(String),
}

impl DiskContents {
    /// Returns an error if a write by `writer` would destroy data of the drive called `name`.
    ///
    /// # Errors
    /// If the drive may hold data; the text names the data, and what to do.
    pub fn check(&self, name: &str, writer: &str) -> Result<(), BenchError> {
        let DiskContents::Data(found) = self else { return Ok(()) };
        Err(BenchError::Workload(format!(
            "{name} {found}, and {writer} would overwrite that; name an empty one, or add \
             --overwrite to lose what it holds"
        )))
    }

    /// Searches the drives of one target for data. With several drives, the text of
    /// [`DiskContents::Data`] begins with the spec of the drive that has data.
    pub fn of_all(drives: &[Spec]) -> Result<DiskContents, BenchError> {
        for spec in drives {
            if let DiskContents::Data(found) = contents_of(spec)? {
                let of_one = drives.len() == 1;
                return Ok(DiskContents::Data(if of_one {
                    found
                } else {
                    format!("({spec}) {found}")
                }));
            }
        }
        Ok(DiskContents::Empty)
    }
}

/// Returns an error if one of `drives` may hold data. `writer` names the job or flag that would
/// overwrite the data, for the error message.
pub fn check_drives(drives: &[Spec], writer: &str) -> Result<(), BenchError> {
    drives.iter().try_for_each(|spec| contents_of(spec)?.check(&format!("drive {spec}"), writer))
}

/// Returns an error if `writer` would destroy data that the export of an NBD server may hold.
pub fn check_nbd(uri: &NbdUri, writer: &str) -> Result<(), BenchError> {
    servers::nbd(uri)?.check(&format!("the export of {}", uri.address), writer)
}

/// Returns an error if `writer` would destroy data that the disk of a vhost-user-blk server may
/// hold.
pub fn check_vhost(socket: &Path, writer: &str) -> Result<(), BenchError> {
    servers::vhost(socket)?.check(&format!("the disk of vhost-user:{}", socket.display()), writer)
}

/// Searches the drive of a spec, which is not open yet, for data.
///
/// # Errors
/// If the drive is on a server or cluster that cannot be reached. Mistakes in the spec are reported
/// later, when the drive is opened.
pub fn contents_of(spec: &Spec) -> Result<DiskContents, BenchError> {
    let spec = &spec.innermost();
    if spec.get("read-only").is_some_and(|value| value != "off" && value != "false") {
        return Ok(DiskContents::Empty);
    }
    match (spec.file(), spec.is_run_by_owners()) {
        (Some(path), _) => Ok(contents_of_file(&path)),
        (None, true) => contents_elsewhere(spec),
        (None, false) => Ok(DiskContents::Empty),
    }
}

fn contents_of_file(path: &Path) -> DiskContents {
    // Do not open a pipe, because the open would block.
    let Ok(kind) = fs::metadata(path).map(|meta| meta.file_type()) else {
        return DiskContents::Empty;
    };
    if !kind.is_file() && !kind.is_block_device() {
        return DiskContents::Empty;
    }
    let Ok(file) = File::open(path) else { return DiskContents::Empty };
    if kind.is_file() && seek(&file, SeekFrom::Data(0)) == Err(Errno::NXIO) {
        return DiskContents::Empty;
    }
    let mut head = vec![0; marks::HEAD_BYTES as usize];
    let length = file.read_at(&mut head, 0).unwrap_or(0);
    DiskContents::Data(match marks::known(&head[..length]) {
        Some(mark) => format!("holds {mark}"),
        None if kind.is_file() => "holds data".to_owned(),
        None => "is a block device, which cannot report that it is empty".to_owned(),
    })
}

/// Asks a drive's server or cluster which ranges of the drive are zeroes. The drive is open,
/// read-only, only for this query.
fn contents_elsewhere(spec: &Spec) -> Result<DiskContents, BenchError> {
    let mut reader = spec.clone();
    reader.options.retain(|(key, _)| key != "read-only");
    reader.options.push(("read-only".to_owned(), "on".to_owned()));
    let opened =
        millrace_drives::open(&reader, 1).map_err(|error| BenchError::drive(spec, &error))?;
    let driver: &dyn Driver<Native> = &*opened.driver;
    let (mut sector, end) = (0, driver.capacity());
    while sector < end {
        let extents = driver.extents(sector, end - sector);
        let known: u64 = extents.iter().map(|extent| extent.nr_sectors).sum();
        if known == 0 || extents.iter().any(|extent| !extent.zero) {
            return Ok(DiskContents::Data(
                "may hold data: it does not report all of its blocks as zeroes".to_owned(),
            ));
        }
        sector += known;
    }
    Ok(DiskContents::Empty)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(spec: &str) -> Option<String> {
        match contents_of(&spec.parse().unwrap()).unwrap() {
            DiskContents::Empty => None,
            DiskContents::Data(found) => Some(found),
        }
    }

    #[test]
    fn only_memory_new_files_and_holes_are_known_to_be_empty() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| format!("file:path={}", dir.path().join(name).display());
        for spec in ["null", "ram:size=1m", "model:preset=850evo,size=1m"] {
            assert_eq!(found(spec), None, "{spec}");
        }
        assert_eq!(found(&format!("{},size=1m", file("new"))), None);
        let holes = File::create(dir.path().join("holes")).unwrap();
        holes.set_len(1 << 20).unwrap();
        assert_eq!(found(&file("holes")), None);
        // Zeroes that were written are data: nobody can say whose.
        holes.write_all_at(&[0; 4096], 512 << 10).unwrap();
        assert_eq!(found(&file("holes")).as_deref(), Some("holds data"));
        assert_eq!(found(&format!("{},read-only=on", file("holes"))), None);
        holes.write_all_at(b"\x53\xef", 0x438).unwrap();
        let ext4 = Some("holds an ext2, ext3 or ext4 file system".to_owned());
        assert_eq!(found(&file("holes")), ext4);
        assert_eq!(found(&format!("fault:drive=({}),every=9", file("holes"))), ext4);
    }

    #[test]
    fn a_refusal_names_the_drive_the_find_and_the_flag() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d0");
        fs::write(&path, [7; 4096]).unwrap();
        let drives = ["ram:size=1m".to_owned(), format!("file:path={}", path.display())];
        let drives = drives.map(|spec| spec.parse().unwrap());
        let error = check_drives(&drives, "rw=write").unwrap_err().to_string();
        let said = format!(
            "drive file:path={} holds data, and rw=write would overwrite that; name an empty one, \
             or add --overwrite to lose what it holds",
            path.display()
        );
        assert_eq!(error, said);
        let together = DiskContents::of_all(&drives).unwrap();
        let DiskContents::Data(found) = together else { panic!("{together:?}") };
        assert_eq!(found, format!("(file:path={}) holds data", path.display()));
    }
}
