//! Settings of a Ceph drive, parsed from a spec, and the driver's row in the driver table.
//!
//! A missing image is detected only when the drive is opened.

use millrace_block::QueueKind;
use std::time::Duration;

use super::name::{FORM, ImageName};
use super::open::look;
use super::{RbdConfig, RbdDriver, library};
use crate::open::{DriveSettings, DriverRow, OpenOptions, Opened};
use crate::spec::{Spec, SpecError};

pub(crate) const ROW: DriverRow = DriverRow {
    name: "rbd",
    keys: "image conf cluster id depth lock read-only connect writethrough-until-flush",
    main_key: Some("image"),
    path_keys: "conf",
    queues: QueueKind::OwnerOnly,
    settings: |spec| Ok(Box::new(config_of(spec)?)),
};

impl DriveSettings for RbdConfig {
    fn open(self: Box<Self>, io_threads: u16, options: &OpenOptions) -> Result<Opened, SpecError> {
        let config = RbdConfig { io_threads, cancel: options.cancel.clone(), ..*self };
        if options.dry_run.is_some() {
            return Ok(look(library::functions()?, &config)?);
        }
        let image = RbdDriver::open(config)?;
        let (warnings, identity) = (image.warnings.clone(), Some(image.identity()));
        Ok(Opened { warnings, identity, ..Opened::plain(image) })
    }
}

fn config_of(spec: &Spec) -> Result<RbdConfig, SpecError> {
    let default = RbdConfig::default();
    let image = spec.value("image", |text| text.parse::<ImageName>().ok(), FORM)?;
    let Some(image) = image else { return Err(spec.missing("image")) };
    let path = |text: &str| (!text.is_empty() && !text.contains('\0')).then(|| text.into());
    let user = name(spec, "id")?.unwrap_or(default.user);
    let connect = spec.time("connect")?.map_or(default.connect, Duration::from_nanos);
    if connect.is_zero() {
        return Err(spec.invalid("connect", "write a time above 0, as in 60s"));
    }
    Ok(RbdConfig {
        image,
        conf: spec.value("conf", path, "write the path of the cluster's configuration")?,
        cluster: name(spec, "cluster")?.unwrap_or(default.cluster),
        user: user.strip_prefix("client.").map_or(user.clone(), str::to_owned),
        depth: spec.depth()?.unwrap_or(default.depth),
        lock: spec.switch("lock")?.unwrap_or(default.lock),
        read_only: spec.switch("read-only")?.unwrap_or(default.read_only),
        connect,
        writethrough_until_flush: spec.switch("writethrough-until-flush")?,
        io_threads: default.io_threads,
        cancel: default.cancel,
    })
}

fn name(spec: &Spec, key: &str) -> Result<Option<String>, SpecError> {
    let parse = |text: &str| {
        let is_name = !text.is_empty() && !text.contains(['\0', '/']);
        is_name.then(|| text.to_owned())
    };
    spec.value(key, parse, "write a name, as in admin")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Result<RbdConfig, SpecError> {
        config_of(&text.parse().unwrap())
    }

    #[test]
    fn every_key_reaches_its_setting() {
        let config = config(
            "rbd:p/n/i,conf=/x/c.conf,cluster=far,id=client.me,depth=7,lock=off,read-only=on,\
             connect=5s,writethrough-until-flush=off",
        );
        let config = config.unwrap();
        assert_eq!(config.image.to_string(), "p/n/i");
        assert_eq!(config.conf.as_deref(), Some(std::path::Path::new("/x/c.conf")));
        assert_eq!((config.cluster.as_str(), config.user.as_str()), ("far", "me"));
        assert_eq!((config.depth, config.lock, config.read_only), (7, false, true));
        assert_eq!(config.connect, Duration::from_secs(5));
        assert_eq!(config.writethrough_until_flush, Some(false));
    }

    #[test]
    fn a_snapshot_is_read_only_and_an_image_is_not() {
        assert!(config("rbd:p/i@s").unwrap().is_read_only());
        assert!(!config("rbd:p/i").unwrap().is_read_only());
    }

    #[test]
    fn values_that_make_no_sense_are_refused_with_their_key() {
        for (text, key) in [
            ("rbd:i", "image"),
            ("rbd:p/i,id=", "id"),
            ("rbd:p/i,cluster=a/b", "cluster"),
            ("rbd:p/i,conf=", "conf"),
            ("rbd:p/i,connect=0", "connect"),
            ("rbd:p/i,depth=0", "depth"),
        ] {
            let error = config(text).expect_err(text).to_string();
            assert!(error.starts_with(&format!("driver rbd: {key}=")), "{text}: {error}");
        }
        assert_eq!(config("rbd:").unwrap_err().to_string(), "driver rbd needs image=...");
    }
}
