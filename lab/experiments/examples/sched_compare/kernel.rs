//! The kernel's side: a loop device over the file, its scheduler, control groups with weights.
//!
//! Owns the device and the groups; both are gone when dropped, the device even when this program
//! is killed. Called by main.rs; calls losetup, and writes files of sysfs and of control groups.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::compare::Outcome;

/// A loop device. It is set to go with the last who has it open, and this has it open: so it goes
/// however this program ends.
pub struct Loop {
    name: String,
    _open: File,
}

impl Loop {
    /// A free loop device over `file`, which it reads and writes past the page cache.
    pub fn attach(file: &Path) -> Outcome<Loop> {
        let path = losetup(&["--direct-io=on", "--show", "--find", &file.display().to_string()])?;
        let path = path.trim();
        let open = File::open(path);
        // While somebody has it open, this only marks it to be detached later.
        losetup(&["--detach", path])?;
        let name = path.trim_start_matches("/dev/").to_owned();
        let device = Loop { name, _open: open? };
        match fs::read_to_string(device.sys("loop/dio"))?.trim() {
            "1" => Ok(device),
            _ => Err(format!("{}: no direct I/O on this file system", file.display()).into()),
        }
    }

    /// Its device file.
    pub fn path(&self) -> String {
        format!("/dev/{}", self.name)
    }

    fn sys(&self, file: &str) -> PathBuf {
        Path::new("/sys/block").join(&self.name).join(file)
    }

    /// Sets its scheduler, whose module the kernel loads if it has one, and kyber's read target.
    pub fn set_scheduler(&self, name: &str, target_us: u32) -> Outcome<()> {
        let file = self.sys("queue/scheduler");
        let has = || format!("this kernel has {}", fs::read_to_string(&file).unwrap_or_default());
        fs::write(&file, name).map_err(|error| format!("{error}; {}", has().trim()))?;
        if name == "kyber" {
            let target_ns = u64::from(target_us) * 1000;
            fs::write(self.sys("queue/iosched/read_lat_nsec"), target_ns.to_string())?;
        }
        Ok(())
    }
}

fn losetup(arguments: &[&str]) -> Outcome<String> {
    let output = Command::new("losetup").args(arguments).output();
    let output = output.map_err(|error| format!("losetup: {error}; install util-linux"))?;
    match output.status.success() {
        true => Ok(String::from_utf8(output.stdout)?),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned().into()),
    }
}

/// Where control groups take bfq's weights.
pub struct WeightGroups {
    root: PathBuf,
    /// The file of a group that holds its weight.
    file: &'static str,
}

impl WeightGroups {
    /// The mounted hierarchy that has the controller: version 2's `io`, or version 1's `blkio`.
    pub fn find() -> Option<WeightGroups> {
        let mounts = fs::read_to_string("/proc/mounts").ok()?;
        mounts.lines().find_map(|line| {
            let [_, root, kind, options, ..] = line.split(' ').collect::<Vec<_>>()[..] else {
                return None;
            };
            let root = PathBuf::from(root);
            let hands_on = || fs::read_to_string(root.join("cgroup.subtree_control"));
            match kind {
                "cgroup2"
                    if hands_on().is_ok_and(|list| list.split_whitespace().any(|c| c == "io")) =>
                {
                    Some(WeightGroups { root, file: "io.bfq.weight" })
                }
                "cgroup" if options.split(',').any(|option| option == "blkio") => {
                    Some(WeightGroups { root, file: "blkio.bfq.weight" })
                }
                _ => None,
            }
        })
    }

    /// A group of this weight.
    pub fn group(&self, weight: u32) -> Outcome<Group> {
        let name = |n: u32| self.root.join(format!("sched_compare.{}.{n}", std::process::id()));
        let made = (0..64).map(name).find_map(|path| match fs::create_dir(&path) {
            Ok(()) => Some(Ok(Group(path))),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => None,
            Err(error) => Some(Err(format!("{}: {error}", path.display()))),
        });
        let group = made.ok_or("control groups of earlier runs are still there")??;
        fs::write(group.0.join(self.file), weight.to_string())?;
        Ok(group)
    }
}

/// A control group; removed when dropped.
pub struct Group(PathBuf);

impl Group {
    /// The file that takes the pids of its members.
    pub fn members(&self) -> PathBuf {
        self.0.join("cgroup.procs")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}
