//! `Places`: drives opened one after the other, none of them where another one keeps its data.
//!
//! Owns the rule that one file, export or image is one drive's, unless all of them only read it:
//! two drives over one store, each with queues of its own, would destroy what the other one wrote.
//! A file is compared before its drive is opened, and so before it would be changed; servers and
//! clusters say what a drive is when they are asked. Called by opening.rs and assemble.rs, and by
//! programs that only look at drives.

use std::collections::HashMap;

use millrace_block::ErrorKind;
use millrace_drives::{Place, Spec, SpecError, file_place};

use crate::assemble::{DriveOptions, Host, OpenedDrive, SetupError, assemble_drive, open_drive};

/// Drives, in the order of opening, and where they keep their data.
#[derive(Debug, Default)]
pub struct Places {
    /// Names.
    drives: Vec<String>,
    /// The drives at each place, by its identity.
    users: HashMap<(u64, u64), Vec<PlaceUser>>,
}

/// A drive at a place.
#[derive(Debug)]
struct PlaceUser {
    number: usize,
    read_only: bool,
}

impl Places {
    /// Enters the next drive; none for one whose data nobody else can name.
    ///
    /// # Errors
    /// `SameFile` if it is in the way of another drive; it is entered in any case.
    pub fn take(&mut self, name: &str, place: Option<Place>) -> Result<(), SetupError> {
        let free = self.check(name, place);
        let number = self.drives.len();
        self.drives.push(name.to_owned());
        if let Some(Place { identity, read_only }) = place {
            self.users.entry(identity).or_default().push(PlaceUser { number, read_only });
        }
        free
    }

    /// Forgets drives that are closed; numbers are not used again.
    #[cfg_attr(not(feature = "serve"), allow(dead_code))] // Only servers change.
    pub(crate) fn forget(&mut self, is_closed: impl Fn(&str) -> bool) {
        let drives = &self.drives;
        self.users.retain(|_, users| {
            users.retain(|user| !is_closed(&drives[user.number]));
            !users.is_empty()
        });
    }

    /// Refuses a place where a drive keeps its data already.
    pub(crate) fn check(&self, name: &str, place: Option<Place>) -> Result<(), SetupError> {
        let Some(place) = place else { return Ok(()) };
        // As `Place::clashes_with`: only readers share a place.
        let mut users = self.users.get(&place.identity).into_iter().flatten();
        let other = users.find(|user| !(user.read_only && place.read_only));
        let Some(PlaceUser { number: other, .. }) = other else { return Ok(()) };
        let (name, other_name) = (name.to_owned(), self.drives[*other].clone());
        Err(SetupError::SameFile { name, other: *other, other_name })
    }

    /// Opens the next drive.
    ///
    /// # Errors
    /// As [`open_drive`], and `SameFile` if the drive is in the way of another one.
    pub(crate) fn open(
        &mut self,
        (name, spec): (&str, &Spec),
        options: &DriveOptions,
        host: &mut Host,
    ) -> Result<OpenedDrive, SetupError> {
        let opened = match host.opened.take() {
            Some(driver) => assemble_drive((name, spec), driver, options, host)?,
            None => {
                // A spec that is wrong is refused below.
                self.check(name, file_place(spec).ok().flatten())?;
                let opened = open_drive(name, spec, options, host);
                opened.map_err(|error| self.explain((name, spec), error))?
            }
        };
        let read_only = opened.disk.limits().features.read_only;
        let place = opened.identity.map(|identity| Place { identity, read_only });
        self.take(name, place)?;
        Ok(opened)
    }

    /// The drive that has what another one cannot be given, if it is one of these.
    fn explain(&self, (name, spec): (&str, &Spec), error: SetupError) -> SetupError {
        let is_busy = matches!(&error, SetupError::Drive { cause: SpecError::Open(why), .. }
            if why.kind() == ErrorKind::Busy);
        if !is_busy {
            return error;
        }
        let place = millrace_drives::measure(spec).ok().and_then(|measured| measured.place);
        self.check(name, place).err().unwrap_or(error)
    }

    /// What the next drive of a volume without names for its drives is called.
    pub(crate) fn next_name(&self) -> String {
        format!("d{}", self.drives.len())
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
