//! `ControlThread`: a thread of each Ceph drive, for all calls that may wait for the cluster.
//!
//! The thread checks the image while the drive is open, answers queries about holes, and closes the
//! image at the end. A check opens the image again by its id and compares it with the open image.
//! The image is checked at every change that librbd reports, and every few seconds. Without checks,
//! librbd would return wrong data in these cases:
//! - If the snapshot is removed, reads return the current data of the image.
//! - If the image is removed, reads return zeroes.
//! - If a clone is flattened while it is open without a watch, reads return the parent's data.
//!
//! Invariant: the thread keeps no reference to the image after `ControlThread::end_looks`, so
//! closing the drive closes the image.

use std::io;
use std::ops::Range;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use millrace_block::{Error, ErrorKind};
use millrace_machine::{Deadline, Native, lock_unpoisoned};

use super::image::RbdImage;
use super::{ImageFacts, RbdState};
use crate::common::units::size_text;

/// Interval between two checks of an image without a watch. librbd does not report changes of such
/// an image.
pub(crate) const UNWATCHED_PERIOD: Duration = Duration::from_secs(2);
/// Interval between two checks of an image with a watch. librbd reports changes of such an image,
/// but the watch may be lost.
const WATCHED_PERIOD: Duration = Duration::from_secs(10);
/// Maximum wait after a change of the image. The client that has changed the image waits until this
/// drive has checked the image, but not longer than this time.
const UPDATE_PATIENCE: Duration = Duration::from_secs(1);
/// Maximum time that the closing of all drives together waits for clusters that do not answer.
const CLOSE_PATIENCE: Duration = Duration::from_secs(10);
/// Feature bit `RBD_FEATURE_EXCLUSIVE_LOCK`.
pub(super) const EXCLUSIVE_LOCK: u64 = 1 << 2;

/// Maximum time of the next call of [`wait_for_end`]. Zero if the cluster did not answer in time
/// during the previous call; otherwise [`CLOSE_PATIENCE`].
static PATIENCE: Mutex<Duration> = Mutex::new(CLOSE_PATIENCE);

/// Byte ranges with data, in order; `None` if unknown.
pub(super) type Data = Option<Vec<Range<u64>>>;

/// Function that the control thread executes. The argument is the control thread's reference to the
/// drive's state. If the function sets the reference to `Weak::new()`, the thread no longer checks
/// the image.
pub(super) type ControlOrder = Box<dyn FnOnce(&mut Weak<RbdState>) + Send>;

/// Sends an order to a control thread and returns the receiver of its answer. If the control thread
/// has ended, the receiver returns an error at once.
pub(super) fn order<T: Send + 'static>(
    orders: &Sender<ControlOrder>,
    work: impl FnOnce(&mut Weak<RbdState>) -> T + Send + 'static,
) -> Receiver<T> {
    let (sender, receiver) = mpsc::channel();
    // An answer that nobody awaits any more is dropped.
    let _ = orders.send(Box::new(move |shared| drop(sender.send(work(shared)))));
    receiver
}

pub(super) struct ControlThread {
    pub(super) orders: Sender<ControlOrder>,
    /// Query about holes that was not answered in time. No further query is sent until its answer
    /// arrives.
    pub(super) late: Mutex<Option<Receiver<Data>>>,
}

impl ControlThread {
    pub(super) fn start(shared: &Arc<RbdState>) -> io::Result<ControlThread> {
        let (sender, orders) = mpsc::channel();
        let theirs = Arc::downgrade(shared);
        let is_told = {
            let sender = sender.clone();
            // A thread of librbd makes this call when the image has changed. The client that has
            // changed the image waits for the end of the call, at most for `UPDATE_PATIENCE`.
            let wait_for_look = move || drop(order(&sender, look).recv_timeout(UPDATE_PATIENCE));
            // If the callback cannot be set, librbd reports no changes. The image is then checked
            // as often as an image without a watch.
            shared.image.is_watched && shared.image.on_update(Box::new(wait_for_look)).is_ok()
        };
        let period = if is_told { WATCHED_PERIOD } else { UNWATCHED_PERIOD };
        let _detached =
            Native::try_spawn("millrace-rbd", None, move || run(theirs, &orders, period))?;
        shared.image.control.get_or_init(|| sender.clone());
        Ok(ControlThread { orders: sender, late: Mutex::default() })
    }

    /// Asks the control thread to check the image. The receiver returns the image's size in bytes.
    /// The cluster may take any time to answer.
    pub(super) fn look(&self) -> Receiver<Result<u64, Error>> {
        order(&self.orders, look)
    }

    /// Waits until no check of the image is in progress. The control thread begins no further check
    /// afterwards.
    pub(super) fn end_looks(&self) {
        wait_for_end(&order(&self.orders, |shared| *shared = Weak::new()));
    }
}

/// Waits until `ended` reports the end of an operation, while a drive is being closed. Waits for
/// `PATIENCE` at most.
pub(super) fn wait_for_end(ended: &Receiver<()>) {
    let patience = || lock_unpoisoned(&PATIENCE);
    let mut limit = Deadline::<Native>::after(*patience());
    let has_ended = limit.receive(ended).is_some();
    // If the control thread has ended, `ended` returns an error before the time is up. So only a
    // wait that takes the whole time shows that the cluster does not answer.
    *patience() = match !has_ended && limit.is_over() {
        true => Duration::ZERO,
        false => CLOSE_PATIENCE,
    };
}

fn run(mut shared: Weak<RbdState>, orders: &Receiver<ControlOrder>, period: Duration) {
    loop {
        match orders.recv_timeout(period) {
            Ok(order) => order(&mut shared),
            // A failed check is repeated at the next interval. The check itself reports what is
            // wrong with the image.
            Err(RecvTimeoutError::Timeout) => drop(look(&mut shared)),
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn look(shared: &mut Weak<RbdState>) -> Result<u64, Error> {
    let closed = || Error::new(ErrorKind::System, "the drive is closed");
    shared.upgrade().ok_or_else(closed)?.look()
}

struct CurrentImage {
    size_bytes: u64,
    overlap_bytes: u64,
    features: u64,
}

enum LookError {
    Gone(&'static str),
    System(io::Error),
}

impl From<io::Error> for LookError {
    fn from(error: io::Error) -> LookError {
        LookError::System(error)
    }
}

/// Converts an error of a cluster request; for ENOENT, `what` says what was removed.
fn gone_or(error: io::Error, what: &'static str) -> LookError {
    match error.raw_os_error() {
        Some(libc::ENOENT) => LookError::Gone(what),
        _ => LookError::System(error),
    }
}

impl RbdState {
    /// Compares the image in the cluster with the open image. Returns the size in the cluster, in
    /// bytes. Waits until the cluster answers. Returns an error if the cluster reports one, if the
    /// image or its snapshot was removed, or if the drive has failed before. If the exclusive lock
    /// is gone or the image was flattened, makes the drive fail, but still returns the size.
    fn look(&self) -> Result<u64, Error> {
        let error = |text: &str| Error::new(ErrorKind::System, format!("{}: {text}", self.name));
        if self.limit_bytes() == 0 {
            return Err(error(
                "the drive has failed; see the log for the reason, then restart millrace",
            ));
        }
        let found = self.found().map_err(|why| match why {
            LookError::Gone(what) => {
                self.fail(&format!("{what}, so all I/O fails"));
                error(what)
            }
            LookError::System(why) => {
                self.tell(why.raw_os_error().unwrap_or(0));
                error(&format!("cannot read the image's header: {why}"))
            }
        })?;
        let CurrentImage { size_bytes, overlap_bytes, features } = found;
        if self.is_locked && features & EXCLUSIVE_LOCK == 0 {
            self.fail(
                "its exclusive lock is gone because the feature exclusive-lock was disabled (rbd \
                 feature disable): other clients may write, so all I/O fails; rbd feature enable \
                 gives the lock back",
            );
        } else if !self.image.is_watched && overlap_bytes < self.facts.overlap_bytes.min(size_bytes)
        {
            self.fail(
                "the image was flattened, which a user who may only read is not told in time, so \
                 all I/O fails; with the profile rbd for the pool that user would be told",
            );
        } else {
            self.shrink(size_bytes);
        }
        Ok(size_bytes)
    }

    /// Returns the image's current state in the cluster. Opens the image a second time, because a
    /// change of the image may block calls on the first handle until this check has ended.
    fn found(&self) -> Result<CurrentImage, LookError> {
        let ImageFacts { id, snapshot_id, .. } = &self.facts;
        let now = RbdImage::open_by_id(&self.image.cluster, id)
            .map_err(|error| gone_or(error, "the image was removed, for example by `rbd rm`"))?;
        let set = now.set_snapshot(*snapshot_id);
        set.map_err(|error| {
            gone_or(error, "the snapshot was removed, for example by `rbd snap rm`")
        })?;
        Ok(CurrentImage {
            size_bytes: now.info()?.size_bytes,
            overlap_bytes: now.overlap()?,
            features: now.features()?,
        })
    }

    fn shrink(&self, size_bytes: u64) {
        let before = self.size_bytes();
        // The new size limit is at least 1 byte, because a limit of 0 bytes marks a failed drive.
        if size_bytes < before && self.limit(size_bytes.max(1)) {
            let (before, now) = (size_text(before), size_text(size_bytes));
            self.say(&format!(
                "the image was shrunk from {before} to {now}: behind that, writes fail with `no \
                 space` and reads with `I/O error`; enlarge it again (rbd resize) and run millrace \
                 ctl resize, or restart millrace to serve the smaller image"
            ));
        }
    }
}
