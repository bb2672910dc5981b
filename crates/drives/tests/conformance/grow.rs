//! Drives that grow while they are used: files do, memory does not, and the rest passes it on.

use std::fs::OpenOptions;
use std::path::Path;

use millrace_block::{Disk, DiskConfig, Driver, Error, ErrorKind, Reject, Status, Volume};
use millrace_drives::{
    FaultCache, FaultConfig, FaultDriver, FileConfig, FileDriver, RamConfig, RamDriver,
};
use millrace_machine::Native;

use super::harness::*;

const MIB: u64 = 1 << 20;

fn set_len(path: &Path, size_bytes: u64) {
    OpenOptions::new().write(true).open(path).unwrap().set_len(size_bytes).unwrap();
}

/// A file drive of 1 MiB, whose spec gives no size unless `fixed_bytes` does.
fn file(path: &Path, fixed_bytes: Option<u64>) -> FileDriver {
    let config = FileConfig { path: path.into(), size_bytes: fixed_bytes, ..FileConfig::default() };
    FileDriver::open(config).unwrap()
}

fn asked(driver: &dyn Driver<Native>) -> Result<u64, (ErrorKind, String)> {
    driver.revalidate().map_err(|error: Error| (error.kind(), error.to_string()))
}

#[test]
fn drive_that_has_not_grown_says_the_size_that_it_had() {
    let kinds = [
        Kind::Null,
        Kind::Ram,
        Kind::Model,
        Kind::ModelRam,
        Kind::File,
        Kind::FileThreads,
        Kind::FileBuffered,
        Kind::FileInline,
        Kind::FaultRam,
        Kind::FaultFile,
        Kind::FaultVolatile,
        Kind::FaultVolatileWithoutFua,
    ];
    for plan in plans(&kinds) {
        let mut rig = Rig::new(&plan);
        let volume = &rig.drives.volume;
        let (size, resized) = (volume.capacity(), volume.resize().unwrap());
        assert_eq!((resized.old, resized.new, volume.capacity()), (size, size, size));
        let rejected = rig.rejection(millrace_block::Bio::read(size, buffer_of(&[0; 512])));
        assert_eq!(rejected, Reject::Invalid(Status::OutOfRange));
    }
}

#[test]
fn grown_part_of_a_file_is_written_and_read_by_an_old_channel() {
    let files = [Kind::File, Kind::FileThreads, Kind::FileBuffered, Kind::FileInline];
    let kinds = [files.as_slice(), &[Kind::FaultFile]].concat();
    for plan in plans(&kinds) {
        // The file's own size counts, on each back end.
        let mut rig = Rig::growing(&plan);
        let end = plan.size_bytes >> 9;
        rig.write(0, &pattern(0, 4096, 1));
        set_len(&rig.drives.paths[0], plan.size_bytes + MIB);
        assert_eq!(rig.drives.volume.resize().unwrap().new, end + 2048);
        let data = pattern(end - 8, 16 << 9, 2);
        rig.write(end - 8, &data);
        assert_eq!(rig.read(end - 8, 16 << 9), data);
        // Beyond the old end there are zeroes up to the new end.
        assert_eq!(rig.read(end + 2040, 4096), [0; 4096]);
        assert_eq!(rig.read(0, 4096), pattern(0, 4096, 1));
        let extents = rig.drives.volume.extents(0, end + 2048, 100);
        assert_eq!(extents.iter().map(|extent| extent.nr_sectors).sum::<u64>(), end + 2048);
        let rejected = rig.rejection(millrace_block::Bio::read(end + 2048, buffer_of(&[0; 512])));
        assert_eq!(rejected, Reject::Invalid(Status::OutOfRange));
    }
}

#[test]
fn file_cut_short_is_refused_until_restored() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("d0");
    std::fs::write(&path, vec![0; MIB as usize]).unwrap();
    let config = DiskConfig { name: String::from("d0"), ..DiskConfig::default() };
    let disk = Disk::new(Box::new(file(&path, None)), config).unwrap();
    let volume = Volume::single(disk).unwrap();
    set_len(&path, MIB - 4096);
    let error = volume.resize().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidSetting);
    let said = "drive d0: it has 1044480 bytes now, and 1048576 are served; a drive only grows";
    assert!(error.to_string().starts_with(said), "{error}");
    assert_eq!(volume.capacity(), 2048);
    set_len(&path, MIB + 512);
    assert_eq!(volume.resize().unwrap().new, 2049);
}

#[test]
fn size_of_the_spec_keeps_a_file_drive_where_it_is() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("d0");
    let driver = file(&path, Some(MIB));
    assert_eq!(asked(&driver), Ok(2048));
    set_len(&path, 2 * MIB);
    let said = "d0: it has 2m now, but size=1m keeps the drive at that; raise or remove size=, and \
                start again";
    let (kind, text) = asked(&driver).unwrap_err();
    assert_eq!(kind, ErrorKind::InvalidSetting);
    assert!(text.ends_with(said), "{text}");
    // A drive that is the first part of its file from the start has lost nothing.
    drop(driver);
    assert_eq!(asked(&file(&path, Some(MIB))), Ok(2048));
    assert_eq!(asked(&file(&path, None)), Ok(4096));
}

/// A RAM drive that reports a larger size.
struct Grown(RamDriver);

impl Driver<Native> for Grown {
    fn capacity(&self) -> u64 {
        Driver::<Native>::capacity(&self.0)
    }
    fn revalidate(&self) -> Result<u64, Error> {
        Ok(Driver::<Native>::capacity(&self.0) + 8)
    }
    fn limits(&self) -> millrace_block::QueueLimits {
        Driver::<Native>::limits(&self.0)
    }
    fn hw_queues(&self, topology: &millrace_machine::Topology) -> millrace_block::HwQueues {
        Driver::<Native>::hw_queues(&self.0, topology)
    }
    fn open_queue(
        &self,
        index: u16,
        depth: u32,
    ) -> Result<Box<dyn millrace_block::DriverQueue<Native>>, Error> {
        self.0.open_queue(index, depth)
    }
}

#[test]
fn fault_drive_passes_growth_on_unless_it_holds_contents_itself() {
    let over = |cache| {
        let ram = RamDriver::new(RamConfig { size_bytes: MIB, ..RamConfig::default() }).unwrap();
        let config = FaultConfig { cache, ..FaultConfig::default() };
        FaultDriver::new(Box::new(Grown(ram)), config).unwrap()
    };
    assert_eq!(asked(&over(FaultCache::Inner)), Ok(2056));
    let (kind, text) = asked(&over(FaultCache::Volatile)).unwrap_err();
    assert_eq!(kind, ErrorKind::NotSupported);
    assert!(text.contains("cannot grow; start again"), "{text}");
}
