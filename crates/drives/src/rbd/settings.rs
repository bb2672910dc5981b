//! Settings of a Ceph drive, parsed from a spec, and the driver's row in the driver table.
//!
//! A missing image is detected only when the drive is opened.

use millrace_block::QueueKind;
use std::fmt;
use std::str::FromStr;

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
    let connect = spec.time("connect")?.unwrap_or(default.connect);
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

/// Name of a Ceph image or of one of its snapshots, in the form of the `rbd` program:
/// `pool/image` or `pool/namespace/image`, optionally with `@snapshot`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ImageName {
    /// Name of the pool.
    pub pool: String,
    /// Namespace in the pool; `None` for the default one.
    pub namespace: Option<String>,
    /// Name of the image.
    pub image: String,
    /// Name of the snapshot; `None` for the image itself.
    pub snapshot: Option<String>,
}

const FORM: &str = "write pool/image or pool/namespace/image, optionally followed by @snapshot";

impl FromStr for ImageName {
    /// The error has no details, because the only possible error is a text of the wrong form.
    type Err = ();

    fn from_str(text: &str) -> Result<ImageName, ()> {
        let (image, snapshot) = match text.split_once('@') {
            Some((image, snapshot)) => (image, Some(snapshot)),
            None => (text, None),
        };
        let parts: Vec<&str> = image.split('/').collect();
        let (pool, namespace, image) = match parts[..] {
            [pool, image] => (pool, None, image),
            [pool, namespace, image] => (pool, Some(namespace), image),
            _ => return Err(()),
        };
        let is_name = |part: &str| !part.is_empty() && !part.contains(['\0', '@', '/']);
        let mut all = [Some(pool), namespace, Some(image), snapshot].into_iter().flatten();
        if !all.all(is_name) {
            return Err(());
        }
        let owned = |part: Option<&str>| part.map(str::to_owned);
        let (namespace, snapshot) = (owned(namespace), owned(snapshot));
        Ok(ImageName { pool: pool.to_owned(), namespace, image: image.to_owned(), snapshot })
    }
}

impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/", self.pool)?;
        if let Some(namespace) = &self.namespace {
            write!(f, "{namespace}/")?;
        }
        f.write_str(&self.image)?;
        match &self.snapshot {
            Some(snapshot) => write!(f, "@{snapshot}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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

    #[test]
    fn a_name_is_printed_as_it_was_read() {
        for text in ["p/i", "p/n/i", "p/i@s", "p/n/i@s", "rbd/vm-1.disk_0"] {
            assert_eq!(text.parse::<ImageName>().map(|name| name.to_string()), Ok(text.into()));
        }
    }

    #[test]
    fn the_parts_of_a_name_are_where_they_belong() {
        let name: ImageName = "p/n/i@s".parse().unwrap();
        let parts = (name.namespace.as_deref(), name.snapshot.as_deref());
        assert_eq!((name.pool.as_str(), name.image.as_str()), ("p", "i"));
        assert_eq!(parts, (Some("n"), Some("s")));
    }

    #[test]
    fn text_that_names_no_image_is_refused() {
        for text in ["", "i", "/i", "p/", "p//i", "p/n/i/x", "p/i@", "p/i@a@b", "p/i@a/b", "p/\0"] {
            assert_eq!(text.parse::<ImageName>(), Err(()), "{text:?}");
        }
    }
}
