//! `HeldData`: tells which data the drives of this process have open.
//!
//! Locks of files and of Ceph images do not keep one process from opening the same data twice.

use std::collections::BTreeMap;
use std::sync::Mutex;

use millrace_machine::lock_unpoisoned;

static HELD: Mutex<BTreeMap<(u64, u64), usize>> = Mutex::new(BTreeMap::new());

/// Entry of a drive in the list of open data. Dropping it removes the entry.
#[derive(Debug)]
pub(crate) struct HeldData((u64, u64));

impl HeldData {
    pub(crate) fn shared(identity: (u64, u64)) -> HeldData {
        *lock_unpoisoned(&HELD).entry(identity).or_default() += 1;
        HeldData(identity)
    }

    /// Returns `None` if another drive of this process has the data open.
    pub(crate) fn sole(identity: (u64, u64)) -> Option<HeldData> {
        let mut all = lock_unpoisoned(&HELD);
        let is_new = !all.contains_key(&identity);
        is_new.then(|| {
            all.insert(identity, 1);
            HeldData(identity)
        })
    }

    pub(crate) fn exists(identity: (u64, u64)) -> bool {
        lock_unpoisoned(&HELD).contains_key(&identity)
    }
}

impl Drop for HeldData {
    fn drop(&mut self) {
        let mut all = lock_unpoisoned(&HELD);
        if let Some(drives) = all.get_mut(&self.0) {
            *drives -= 1;
            if *drives == 0 {
                all.remove(&self.0);
            }
        }
    }
}
