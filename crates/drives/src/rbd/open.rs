//! Opens a Ceph drive: connects, opens the image, checks its owner, takes its lock.
//!
//! Every step may wait for the cluster forever. So all steps run on a thread of their own, and the
//! caller waits until a time limit, or until it is told to give up (`Cancel`). Whatever that thread
//! still opens afterwards is closed again. The lock of a live client is never taken away, although
//! librbd would do so. The lock of a dead client is taken once the cluster has forgotten the client
//! (`osd_client_watch_timeout`, 30 s); librbd then puts that client on the cluster's block list.

use std::io;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use millrace_block::{Error, ErrorKind};
use millrace_machine::{Deadline, Machine, Native, lock_unpoisoned, nanoseconds};

use super::cluster::{CephCluster, NO_MONITORS};
use super::control::{ControlThread, EXCLUSIVE_LOCK, UNWATCHED_PERIOD};
use super::image::RbdImage;
use super::library::{self, ImageInfo};
use super::{ImageFacts, OpenImage, RbdConfig, RbdDriver, RbdState};
use crate::common::cancel;
use crate::common::place::{HeldData, two_numbers};
use crate::common::units::size_text;
use crate::null::NullDriver;
use crate::open::Opened;

/// Size to which librbd rounds discards unless configured otherwise, in bytes.
const DISCARD_BYTES: u64 = 64 << 10;
const PAUSE: Duration = Duration::from_millis(250);
/// Time that is added to the limit for connecting, so that the cluster can report why connecting
/// failed.
const GRACE: Duration = Duration::from_secs(2);
const CANCEL_GRACE: Duration = Duration::from_millis(500);
const SIZE_PATIENCE: Duration = Duration::from_secs(30);

#[derive(Clone)]
struct WaitStage(Arc<Mutex<String>>);

impl WaitStage {
    fn set(&self, text: impl Into<String>) {
        *lock_unpoisoned(&self.0) = text.into();
    }
}

fn within<T: Send + 'static>(
    config: &RbdConfig,
    time: Duration,
    work: impl FnOnce(&WaitStage) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let stage = WaitStage(Arc::new(Mutex::new("the cluster does not answer".into())));
    let (theirs, (sender, receiver)) = (stage.clone(), mpsc::channel());
    let body = move || {
        // If the caller no longer waits, dropping the result closes what was opened.
        let _ = sender.send(work(&theirs));
    };
    let _detached = Native::try_spawn("millrace-rbd", None, body)
        .map_err(|error| config.system("open", &error))?;
    let (mut limit, mut is_cancelled) = (Deadline::<Native>::after(time), false);
    loop {
        let left = Duration::from_nanos(limit.left_ns());
        match receiver.recv_timeout(left.min(cancel::LOOK)) {
            Ok(done) => return done,
            Err(RecvTimeoutError::Timeout) if !left.is_zero() => {}
            Err(_) => break,
        }
        if !is_cancelled && config.cancel.is_set() {
            (limit, is_cancelled) = (Deadline::after(CANCEL_GRACE), true);
        }
    }
    config.cancel.check(&config.image)?;
    let why = lock_unpoisoned(&stage.0);
    Err(config.error(ErrorKind::System, format_args!("{why} (after {} s)", time.as_secs())))
}

pub(super) fn open(config: RbdConfig) -> Result<RbdDriver, Error> {
    open_by(library::functions()?, config)
}

pub(super) fn open_by(
    functions: &'static library::LibraryFunctions,
    config: RbdConfig,
) -> Result<RbdDriver, Error> {
    let (theirs, time) = (config.clone(), config.connect);
    let give_up_ns = Native::now().saturating_add(nanoseconds(config.connect));
    let opened = within(&config, time + GRACE, move |stage| {
        let image = open_image(functions, &theirs, stage)?;
        let facts = learn(&image, &theirs)?;
        let held = if theirs.is_read_only() { None } else { Some(hold(&theirs, facts.identity)?) };
        let image = OpenImage { image: Some(image), held, control: OnceLock::new() };
        let warnings = warnings(&image, &theirs)?;
        let is_locked = lock(&image, &theirs, stage, Deadline::at(give_up_ns))?;
        let shared = RbdState {
            image,
            is_locked,
            name: format!("rbd:{}", theirs.image),
            size_bytes: facts.size_bytes.into(),
            limit_bytes: u64::MAX.into(),
            has_written: false.into(),
            told: false.into(),
            news: Mutex::default(),
            facts,
        };
        Ok((Arc::new(shared), warnings))
    });
    let (shared, warnings) = opened?;
    let control = ControlThread::start(&shared).map_err(|error| config.system("open", &error))?;
    Ok(RbdDriver { config, shared, control, warnings })
}

/// Opens an image for a dry run and closes it again. Does not wait for locks: a lock that another
/// client has is an error, unless that client is a drive of this process.
pub(super) fn look(
    functions: &'static library::LibraryFunctions,
    config: &RbdConfig,
) -> Result<Opened, Error> {
    let read_only = config.is_read_only();
    let needs_lock = config.lock && !read_only;
    let theirs = config.clone();
    let time = config.connect + GRACE;
    within(config, time, move |stage| {
        let image = open_image(functions, &theirs, stage)?;
        let ImageFacts { size_bytes, identity, .. } = learn(&image, &theirs)?;
        if needs_lock
            && !HeldData::exists(identity)
            && let Some(owner) = living_owner(&image)
        {
            return Err(theirs.error(ErrorKind::Busy, in_use(&owner)));
        }
        let warnings = warnings(&image, &theirs)?;
        let driver = NullDriver { read_only, ..NullDriver::stand_in(size_bytes, 512) };
        Ok(Opened { identity: Some(identity), warnings, ..Opened::plain(driver) })
    })
}

fn open_image(
    functions: &'static library::LibraryFunctions,
    config: &RbdConfig,
    stage: &WaitStage,
) -> Result<RbdImage, Error> {
    stage.set(NO_MONITORS);
    let cluster = CephCluster::connect(functions, config)?;
    stage.set(
        "the cluster does not give the image; `ceph -s` shows whether its OSDs are up and its \
         placement groups active",
    );
    RbdImage::open(cluster, config).map_err(|error| image_error(config, &error))
}

fn image_error(config: &RbdConfig, error: &io::Error) -> Error {
    let name = &config.image;
    let pool = match &name.namespace {
        Some(namespace) => &format!("{}/{namespace}", name.pool),
        None => &name.pool,
    };
    let text = match (error.raw_os_error(), &name.snapshot) {
        (Some(libc::ENOENT), Some(_)) => format!(
            "there is no such image or no such snapshot; `rbd ls {pool}` and `rbd snap ls \
             {pool}/{}` show what exists",
            name.image
        ),
        (Some(libc::ENOENT), None) => format!(
            "there is no such image; create it with `rbd create --size 10G {name}`; `rbd ls \
             {pool}` shows what exists"
        ),
        (Some(libc::EPERM | libc::EACCES), _) => {
            let (what, way) = match config.is_read_only() {
                true => ("use", "or choose another user with id=NAME"),
                false => (
                    "write to",
                    "choose another user with id=NAME, or set read-only=on to only read",
                ),
            };
            format!(
                "client.{} may not {what} this image ({error}); give this user the profile rbd for \
                 the pool, {way}",
                config.user
            )
        }
        _ => return config.system("open", error),
    };
    config.error(ErrorKind::System, text)
}

fn learn(image: &RbdImage, config: &RbdConfig) -> Result<ImageFacts, Error> {
    let said = |error: io::Error| config.system("its size", &error);
    let ImageInfo { size_bytes, object_bytes, .. } = image.info().map_err(said)?;
    if !object_bytes.is_power_of_two() || !(512..=1 << 30).contains(&object_bytes) {
        let text =
            format!("librbd reports objects of {object_bytes} bytes, which is not supported");
        return Err(config.error(ErrorKind::System, text));
    }
    if size_bytes < 512 {
        let text = format!(
            "an image of {size_bytes} bytes is too small; give it a size with `rbd resize`"
        );
        return Err(config.error(ErrorKind::InvalidSetting, text));
    }
    let discard = image.cluster.setting("rbd_discard_granularity_bytes");
    let discard = discard.and_then(|text| text.trim().parse::<u64>().ok());
    let discard = discard.filter(|bytes| bytes.is_power_of_two()).unwrap_or(DISCARD_BYTES);
    let id = image.id().map_err(said)?;
    let identity = identity(&image.cluster.place(), &id, config);
    let snapshot_id = image.snapshot_id(config.image.snapshot.as_deref());
    Ok(ImageFacts {
        id,
        snapshot_id: snapshot_id.map_err(|error| config.system("its snapshot", &error))?,
        overlap_bytes: image.overlap().map_err(|error| config.system("its parent", &error))?,
        size_bytes,
        object_bytes,
        discard_bytes: discard.clamp(512, object_bytes),
        identity,
        caches: image.cluster.setting("rbd_cache").is_none_or(|text| text.trim() != "false"),
    })
}

/// Returns two hashes that identify the image (by its id) and the snapshot (by its name).
fn identity(place: &str, id: &str, config: &RbdConfig) -> (u64, u64) {
    two_numbers(&(place, id, &config.image.namespace, &config.image.snapshot))
}

fn hold(config: &RbdConfig, identity: (u64, u64)) -> Result<HeldData, Error> {
    let text = "another drive of this program uses this image; list it only once";
    HeldData::sole(identity).ok_or_else(|| config.error(ErrorKind::Busy, text))
}

fn warnings(image: &RbdImage, config: &RbdConfig) -> Result<Vec<String>, Error> {
    let name = &config.image;
    let mut all = Vec::new();
    if !image.is_watched {
        all.push(format!(
            "{name}: client.{} may only read, so it cannot keep others from removing this image, \
             and it is checked every {} s only: after it was removed, shrunk or flattened, reads \
             may return wrong data until the next check; the profile rbd for the pool lets it \
             watch the image",
            config.user,
            UNWATCHED_PERIOD.as_secs()
        ));
    }
    if config.is_read_only() {
        return Ok(all);
    }
    if !has_lock(image, config)? {
        all.push(format!(
            "{name}: nothing keeps other clients from writing to this image, as it has no \
             exclusive lock; `rbd feature enable {name} exclusive-lock` gives it one"
        ));
    } else if !config.lock
        && let Some(owner) = living_owner(image)
    {
        all.push(format!(
            "{name}: the client at {owner} has this image's exclusive lock: with lock=off, writes \
             wait until that client releases it, and fail if it does not"
        ));
    }
    Ok(all)
}

fn has_lock(image: &RbdImage, config: &RbdConfig) -> Result<bool, Error> {
    let features = image.features().map_err(|error| config.system("its features", &error))?;
    Ok(features & EXCLUSIVE_LOCK != 0)
}

/// Takes the exclusive lock if the settings ask for it and the image supports it. Returns true if
/// the lock was taken.
fn lock(
    image: &RbdImage,
    config: &RbdConfig,
    stage: &WaitStage,
    mut limit: Deadline<Native>,
) -> Result<bool, Error> {
    if config.is_read_only() || !config.lock || !has_lock(image, config)? {
        return Ok(false);
    }
    while let Some(owner) = living_owner(image) {
        let why = in_use(&owner);
        if limit.left_ns() <= PAUSE.as_nanos() as u64 {
            return Err(config.error(ErrorKind::Busy, why));
        }
        stage.set(why);
        // A cancellation ends the sleep early; `cancel.check` then returns the error.
        let _ = config.cancel.sleep(PAUSE);
        config.cancel.check(&config.image)?;
    }
    stage.set("the cluster does not grant the image's lock; `ceph -s` shows its health");
    config.cancel.check(&config.image)?;
    image.lock().map_err(|error| {
        let owner = image.owner().unwrap_or_else(|| "an unknown address".into());
        config.error(ErrorKind::Busy, format_args!("{} ({error})", in_use(&owner)))
    })?;
    Ok(true)
}

/// Returns the address of the client that has the lock, unless that client is gone.
fn living_owner(image: &RbdImage) -> Option<String> {
    image.owner().filter(|owner| image.is_watched_by(owner))
}

fn in_use(owner: &str) -> String {
    format!(
        "the client at {owner} has this image's lock; stop that client (one that died gives it \
         back after 30 s), or open the image with read-only=on or, to share it, with lock=off"
    )
}

/// Returns the current size of an image that may have been resized. Returns an error if an image
/// without a watch was resized, because librbd keeps using its old size.
pub(super) fn size_now(
    config: &RbdConfig,
    shared: &RbdState,
    control: &ControlThread,
) -> Result<u64, Error> {
    let now = control.look().recv_timeout(SIZE_PATIENCE).unwrap_or_else(|_| {
        let text = "the cluster does not answer when asked for the image's size";
        Err(config.error(ErrorKind::System, text))
    })?;
    let known = shared.image.size_bytes().map_err(|error| config.system("its size", &error))?;
    if now != known && !shared.image.is_watched {
        let text = format!(
            "it has {} now, but an image keeps its size while it is open for a user who may only \
             read; restart millrace",
            size_text(now)
        );
        return Err(config.error(ErrorKind::InvalidSetting, text));
    }
    if known >= shared.size_bytes() {
        shared.enlarge(known);
    }
    Ok(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(name: &str) -> RbdConfig {
        RbdConfig { image: name.parse().unwrap(), ..RbdConfig::default() }
    }

    #[test]
    fn image_is_the_same_under_all_names_and_snapshots_are_others() {
        let of = |name: &str| identity("fsid 1", "10ab", &config(name));
        assert_eq!(of("p/old"), of("p/new"));
        let all = [of("p/i"), of("p/n/i"), of("p/i@s"), identity("fsid 2", "10ab", &config("p/i"))];
        assert!((1..all.len()).all(|at| !all[..at].contains(&all[at])));
    }

    #[test]
    fn an_image_is_held_once_until_it_is_given_back() {
        let first = HeldData::sole((7, 7)).unwrap();
        let error = hold(&config("p/i"), (7, 7)).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert!(error.to_string().contains("p/i: another drive of this program"), "{error}");
        drop(first);
        assert!(hold(&config("p/i"), (7, 7)).is_ok());
    }

    #[test]
    fn a_refused_thread_is_an_error_of_opening() {
        std::thread::spawn(|| {
            millrace_require::forbid_threads();
            let error = within(&config("p/i"), Duration::from_secs(9), |_| Ok(())).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::System);
            let text = error.to_string();
            assert!(
                text.starts_with("p/i: open: cannot start the thread millrace-rbd: "),
                "{text}"
            );
        })
        .join()
        .unwrap();
    }

    #[test]
    fn whoever_waits_too_long_is_told_what_for() {
        let error = within(&config("p/i"), Duration::from_millis(20), |stage| {
            stage.set("the cluster sleeps");
            std::thread::sleep(Duration::from_secs(1));
            Ok(())
        });
        assert_eq!(error.unwrap_err().to_string(), "p/i: the cluster sleeps (after 0 s)");
    }
}
