//! Errors and devices as Rust programs expect them: `Send`, `Sync`, `Debug`, with kind and errno.
//!
//! The traits are those that `anyhow`, `Box<dyn Error + Send + Sync>`, `unwrap_err` and `matches!`
//! need.

use std::error::Error;
use std::fmt::Debug;
use std::io;

use millrace::{
    AsyncDevice, Bio, BlockDevice, Buffer, Channel, ChannelConfig, Completion, ErrorKind, Opened,
    Rejected, Volume,
};

type AnyError = Box<dyn Error + Send + Sync>;

fn refusal(spec: &str) -> (ErrorKind, Option<i32>, io::ErrorKind, String) {
    let error = BlockDevice::open_drive(spec).unwrap_err();
    let (kind, errno, text) = (error.source.kind(), error.source.errno(), error.to_string());
    assert!(Error::source(&error).is_none(), "nothing is left to be said after {text}");
    (kind, errno, io::Error::from(error).kind(), text)
}

#[test]
fn outcomes_of_submit_go_through_the_question_mark() {
    fn write(channel: &mut Channel) -> Result<(), AnyError> {
        channel.submit(Bio::write(1 << 40, Buffer::new(4096)))?;
        Ok(())
    }
    fn takes<T: Send + Sync + 'static>() {}
    takes::<(Rejected, Bio, Completion)>();
    let disk = BlockDevice::open_drive("ram:size=1m").unwrap();
    let mut channel = Channel::open(disk.volume(), ChannelConfig::default()).unwrap();
    let error = write(&mut channel).unwrap_err();
    assert!(error.to_string().starts_with("the volume cannot serve this bio"), "{error}");
    let rejected: &Rejected = error.downcast_ref().unwrap();
    assert_eq!(rejected.bio.nr_sectors(), 8, "the bio comes back");
}

#[test]
fn devices_are_shown_by_debug() {
    fn shown<T: Debug>() {}
    shown::<(AsyncDevice, Channel, Opened)>();
    let disk = BlockDevice::linear(&["ram:size=1m", "null:size=1m"]).unwrap();
    let volume: &Volume = disk.volume();
    let text = r#"Volume { name: "linear", layout: Linear, drives: ["d0", "d1"], .. }"#;
    assert_eq!(format!("{volume:?}"), text);
    assert_eq!(format!("{disk:?}"), format!("BlockDevice {{ volume: {text}, .. }}"));
}

#[test]
fn errors_of_files_have_the_kind_and_number_of_the_system() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().display().to_string();
    let missing = refusal(&format!("file:path={dir}/none"));
    let text = format!("cannot open drive d0: {dir}/none: there is no such file");
    assert!(missing.3.starts_with(&text), "{}", missing.3);
    assert_eq!((missing.0, missing.1), (ErrorKind::NotFound, Some(2)));
    assert_eq!(missing.2, io::ErrorKind::NotFound);
    let no_directory = refusal(&format!("file:path={dir}/none/a,size=1m"));
    assert_eq!((no_directory.0, no_directory.2), (ErrorKind::NotFound, io::ErrorKind::NotFound));
    let no_socket = refusal(&format!("nbd:uri=nbd+unix:///v?socket={dir}/none"));
    assert_eq!((no_socket.0, no_socket.1), (ErrorKind::NotFound, Some(2)));
    let directory = refusal(&format!("file:path={dir}"));
    assert_eq!(directory.0, ErrorKind::InvalidSetting, "{}", directory.3);
    let wrong = refusal("ram:size=1m,colour=red");
    assert_eq!((wrong.0, wrong.2), (ErrorKind::InvalidSetting, io::ErrorKind::InvalidInput));
}
