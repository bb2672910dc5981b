//! Settings of a file drive, parsed from a spec, and the driver's row in the driver table.
//!
//! Nothing is opened. Errors name the key and its value.

use millrace_block::QueueKind;

use super::{Advice, Aio, Direct, FileConfig};
use crate::open::DriverRow;
use crate::spec::{Spec, SpecError};

pub(crate) const ROW: DriverRow = DriverRow {
    name: "file",
    keys: "path size grow direct aio advice depth lock read-only",
    main_key: None,
    path_keys: "path",
    queues: QueueKind::OwnerOnly,
    settings: |spec| Ok(Box::new(settings_of(spec)?)),
};

fn settings_of(spec: &Spec) -> Result<FileConfig, SpecError> {
    let default = FileConfig::default();
    let Some(path) = spec.get("path") else { return Err(spec.missing("path")) };
    if path.is_empty() {
        return Err(spec.invalid("path", "write the path of a file or block device"));
    }
    let direct = match spec.get("direct") {
        None | Some("auto") => Direct::Auto,
        Some(_) => match spec.switch("direct") {
            Ok(Some(true)) => Direct::On,
            Ok(_) => Direct::Off,
            Err(_) => return Err(spec.invalid("direct", "write on, off or auto")),
        },
    };
    let aio = [
        ("uring", Aio::Uring),
        ("threads", Aio::Threads),
        ("inline", Aio::Inline),
        ("auto", Aio::Auto),
    ];
    let advice = [
        ("normal", Advice::Normal),
        ("random", Advice::Random),
        ("sequential", Advice::Sequential),
    ];
    let config = FileConfig {
        path: path.into(),
        size_bytes: spec.size("size")?,
        grow: spec.switch("grow")?.unwrap_or(default.grow),
        direct,
        aio: spec.choice("aio", &aio)?.unwrap_or_default(),
        advice: spec.choice("advice", &advice)?.unwrap_or_default(),
        depth: spec.depth()?.unwrap_or(default.depth),
        lock: spec.switch("lock")?.unwrap_or(default.lock),
        read_only: spec.switch("read-only")?.unwrap_or(default.read_only),
        ..default
    };
    if config.grow && config.size_bytes.is_none() {
        return Err(spec.invalid("grow", "it goes with size="));
    }
    Ok(config)
}
