//! Tests of the shared allocation with made-up reports of queues.

use alloc::sync::Arc;

use super::*;
use crate::group::Groups;
use crate::group::config::GroupConfig;
use crate::queue::scheduler::cost::CostModel;
use crate::queue::scheduler::parts::DriveParts;
use millrace_machine::Native;

const STEP_NS: u64 = 500_000;

/// A drive of two queues, each with a group of its own that always has I/O waiting.
struct Rig {
    shared: Arc<SharedDrive<Native>>,
    groups: [GroupId; 2],
    now_ns: u64,
}

impl Rig {
    fn new(tags: u32) -> Rig {
        let groups = Groups::<Native>::new();
        let ids = ["x", "y"].map(|name| groups.open(GroupConfig::new(name)).expect("a new name"));
        let tags = DriveTags { queues: 2, tags };
        let drive = DriveParts::of_no_drive(CostModel::default(), tags);
        let shared = SharedDrive::new(Policy::Weights, &groups, &drive);
        Rig { shared, groups: ids, now_ns: 1_000_000_000 }
    }

    /// Lets these queues dispatch as much cost as they may, at most half of the drive's rate each,
    /// and report. Returns the cost that each dispatched.
    fn step(&mut self, queues: &[usize]) -> [u64; 2] {
        self.now_ns += STEP_NS;
        let mut sent = [0; 2];
        for &queue in queues {
            let mut mail = self.shared.mails[queue].lock();
            (mail.at_ns, mail.fresh, mail.largest) = (self.now_ns, true, 10_000);
            let entry = mail.entry(0, (self.groups[queue], 0));
            let may = if entry.slope == 0 { u64::MAX } else { entry.ceiling - entry.served };
            sent[queue] = may.min(STEP_NS / 2);
            entry.served += sent[queue];
            (entry.waiting, entry.in_flight) = (32 * REQUEST, 32 * REQUEST);
            mail.requests = 32;
        }
        self.shared.agreement.lock().make(&self.shared, self.now_ns);
        sent
    }
}

#[test]
fn silent_queue_with_waiting_requests_holds_nobody_up() {
    let mut rig = Rig::new(64);
    let sum = |rig: &mut Rig, queues: &[usize]| (0..200).map(|_| rig.step(queues)[1]).sum::<u64>();
    let before = sum(&mut rig, &[0, 1]);
    assert!(before > 40_000_000, "{before} of 50,000,000 in 100 ms");
    for _ in 0..10 {
        let alone = sum(&mut rig, &[1]);
        assert!(alone > 40_000_000, "{alone} of 50,000,000 in 100 ms");
    }
}

#[test]
fn lone_group_with_all_tags_leaves_an_eighth_to_newcomers() {
    let mut rig = Rig::new(64);
    let depth = |rig: &mut Rig| {
        for _ in 0..400 {
            rig.step(&[1]);
        }
        rig.shared.mails[1].lock().bound.depth
    };
    assert_eq!(depth(&mut rig), [u32::MAX; 2], "a fast drive with tags for all");
    rig.shared.mails[1].lock().counts.short = true;
    assert!(depth(&mut rig)[0] <= 64 / 8 * 7 * REQUEST);
}

#[test]
fn depth_limit_of_all_usable_tags_is_a_lack_of_tags() {
    for (tags, expected) in [(2, WaitReason::NoTag), (1024, WaitReason::Depth)] {
        let mut rig = Rig::new(tags);
        rig.shared.mails[1].lock().counts.short = true;
        for _ in 0..400 {
            rig.step(&[1]);
        }
        let bound = rig.shared.mails[1].lock().bound;
        assert_eq!(bound.held_by, [expected; 2], "depth {:?}", bound.depth);
    }
}
