//! `Places`: records where opened drives keep their data, and refuses drives that share data with a
//! writer.
//!
//! Two drives with separate queues over one file, export or image would overwrite each other's
//! data. Files are compared before their drive is opened, because opening may change them. Servers
//! and clusters are compared once they have answered.

use std::collections::HashMap;
use std::time::Instant;

use millrace_block::ErrorKind;
use millrace_drives::{DataPlace, DryRun, OpenOptions, Spec, SpecError};

use crate::assemble::SetupError;

/// Names of drives in the order of opening, and the identity of each open drive's data, such as the
/// device and inode of its file.
#[derive(Debug, Default)]
pub struct Places {
    pub(crate) drives: Vec<String>,
    /// Drives that use the same data. The key identifies the data, such as the device and inode of
    /// a file.
    users: HashMap<(u64, u64), Vec<PlaceUser>>,
}

#[derive(Debug)]
struct PlaceUser {
    number: usize,
    read_only: bool,
}

impl Places {
    /// Records the drive `name` and the identity of its data (`place`). Returns an error if an
    /// earlier drive has the same data and at least one of the two drives writes. `place` is `None`
    /// if no other drive can reach the data.
    pub(crate) fn take(&mut self, name: &str, place: Option<DataPlace>) -> Result<(), SetupError> {
        let free = self.check(name, place);
        let number = self.drives.len();
        self.drives.push(name.to_owned());
        if let Some(DataPlace { identity, read_only }) = place {
            self.users.entry(identity).or_default().push(PlaceUser { number, read_only });
        }
        free
    }

    /// Removes closed drives from the table of files and devices in use. New drives may then use
    /// the same files and devices. A new drive does not get the index of a closed drive.
    pub(crate) fn forget(&mut self, is_closed: impl Fn(&str) -> bool) {
        let drives = &self.drives;
        self.users.retain(|_, users| {
            users.retain(|user| !is_closed(&drives[user.number]));
            !users.is_empty()
        });
    }

    /// Returns an error if another drive uses the same file or device, unless both are read-only.
    pub(crate) fn check(&self, name: &str, place: Option<DataPlace>) -> Result<(), SetupError> {
        let Some(place) = place else { return Ok(()) };
        let mut users = self.users.get(&place.identity).into_iter().flatten();
        let other = users.find(|user| !(user.read_only && place.read_only));
        let Some(PlaceUser { number: other, .. }) = other else { return Ok(()) };
        let (name, other_name) = (name.to_owned(), self.drives[*other].clone());
        Err(SetupError::SameFile { name, other: *other, other_name })
    }

    /// Returns the error of a drive that could not be opened. If the drive is busy because an
    /// earlier drive uses the same file or device, the error says so.
    pub(crate) fn explain(&self, name: &str, spec: &Spec, error: SetupError) -> SetupError {
        let is_busy = matches!(&error, SetupError::Drive { cause: SpecError::Open(why), .. }
            if why.kind() == ErrorKind::Busy);
        if !is_busy {
            return error;
        }
        let dry_run = Some(DryRun { until: Instant::now(), new_folder: None });
        let options = OpenOptions { dry_run, ..OpenOptions::default() };
        let Ok(found) = millrace_drives::open_with(spec, 1, &options) else { return error };
        let read_only = found.driver.limits().features.read_only;
        let place = found.identity.map(|identity| DataPlace { identity, read_only });
        self.check(name, place).err().unwrap_or(error)
    }
}

#[cfg(test)]
mod tests {
    use millrace_block::Layout;

    use super::*;
    use crate::VolumeOptions;

    fn specs(texts: &[String]) -> Vec<Spec> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn refusal(texts: &[String]) -> Option<String> {
        let built = crate::build_volume(
            "v",
            Layout::Linear,
            &specs(texts),
            &VolumeOptions { io_threads: 1, ..VolumeOptions::default() },
        );
        built.err().map(|error| error.to_string())
    }

    #[test]
    fn a_file_of_two_drives_is_refused_unless_both_only_read_it() {
        let dir = tempfile::tempdir().unwrap();
        let file = |keys: &str| format!("file:path={}/x{keys}", dir.path().display());
        let said = "drive d1: its file, export or image is that of drive d0, too; give each drive \
                    one of its own";
        let (writer, reader) = (file(",size=1m"), file(",read-only=on"));
        assert_eq!(refusal(&[writer.clone(), writer.clone()]).as_deref(), Some(said));
        assert!(!dir.path().join("x").exists(), "what was made is removed");
        std::fs::write(dir.path().join("x"), vec![0; 1 << 20]).unwrap();
        // Without locks nothing else keeps them apart.
        let shared = file(",lock=off");
        assert_eq!(refusal(&[shared.clone(), shared.clone()]).as_deref(), Some(said));
        assert_eq!(
            refusal(&[reader.clone(), format!("fault:drive=({shared})")]).as_deref(),
            Some(said)
        );
        assert_eq!(refusal(&[reader.clone(), reader]), None);
    }

    #[test]
    fn drives_of_a_second_volume_are_told_from_those_of_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let file = [format!("file:path={}/x,size=1m", dir.path().display())];
        let (mut places, options) = (Places::default(), VolumeOptions::default());
        let mut build = || places.build_volume("v", (Layout::Linear, &specs(&file)), &options);
        let (volume, _) = build().unwrap();
        assert_eq!(volume.disks()[0].name(), "d0");
        let text = build().err().unwrap().to_string();
        assert!(
            text.starts_with("drive d1: its file, export or image is that of drive d0"),
            "{text}"
        );
    }
}
