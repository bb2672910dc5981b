//! Tests of size classes, and of which connections a full account delays.

use super::*;
use crate::nbd::tests::{MIB, waiter};

const WRITES: GroupAccount = GroupAccount { group: GroupId(1), is_read: false };
const READS: GroupAccount = GroupAccount { group: GroupId(1), is_read: true };

fn account(group: u16) -> GroupAccount {
    GroupAccount { group: GroupId(group), is_read: false }
}

/// Returns a connection that waits for `mib` MiB, charged to an account.
fn limited(serial: u64, account: GroupAccount, mib: usize) -> MemoryWaiter {
    MemoryWaiter { account: Some(account), ..waiter(0, serial, mib * MIB) }
}

/// Limits on a server of 64 MiB.
const LIMITS: AccountLimits = AccountLimits { max_bytes: 64 * MIB, kept_bytes: 4 * MIB };

/// Returns the serial numbers of the connections that could use free memory.
fn contenders(line: &WaitingLine) -> Vec<u64> {
    line.contenders(LIMITS, None).map(|one| one.serial).collect()
}

#[test]
fn classes_end_with_256_kib_and_2_mib() {
    let bytes = [4096, 256 << 10, (256 << 10) + 1, 2 * MIB, 2 * MIB + 1, 32 * MIB];
    assert_eq!(bytes.map(size_class), [0, 0, 1, 1, 2, 2]);
}

#[test]
fn account_holds_an_eighth_or_one_request_of_any_size() {
    let mut line = WaitingLine::default();
    let has_room = |line: &WaitingLine, account, mib| {
        line.contenders(LIMITS, Some(limited(1, account, mib))).count() == 1
    };
    assert!(has_room(&line, WRITES, 32), "one request of any size");
    line.charge(limited(0, WRITES, 6));
    assert_eq!([2, 3].map(|mib| has_room(&line, WRITES, mib)), [true, false], "8 of 64 MiB");
    assert!(has_room(&line, READS, 8), "reads have an account of their own");
    line.credit(WRITES, 6 * MIB);
    assert!(has_room(&line, WRITES, 32));
}

#[test]
fn full_accounts_make_the_first_waiter_hold_back_later_ones() {
    let mut line = WaitingLine::default();
    (1..=3).for_each(|group| line.charge(limited(0, account(group), 7)));
    line.waiters.extend([limited(1, account(5), 5), limited(2, account(6), 3)]);
    line.waiters.push_back(waiter(0, 3, MIB));
    assert_eq!(
        contenders(&line),
        [3],
        "21 of 24 MiB are held, and a request without limits goes on"
    );
    line.credit(account(1), 7 * MIB);
    assert_eq!(contenders(&line), [1, 2, 3]);
}

#[test]
fn small_requests_do_not_wait_for_large_ones_of_other_groups() {
    let mut line = WaitingLine::default();
    line.charge(limited(0, account(1), 32));
    line.waiters.extend([limited(1, account(2), 32), limited(2, account(3), 1)]);
    line.waiters.push_back(MemoryWaiter { bytes: 4096, ..limited(3, account(4), 0) });
    assert_eq!(contenders(&line), [2, 3], "a large request holds all that accounts may hold");
    for (group, mib) in [(5, 2), (6, 2)] {
        line.charge(limited(0, account(group), mib));
    }
    assert_eq!(contenders(&line), [3], "the 4 MiB of the middle class are in use");
    (7..27).for_each(|group| {
        line.charge(MemoryWaiter { bytes: 256 << 10, ..limited(0, account(group), 0) });
    });
    assert!(contenders(&line).is_empty(), "so are those of the smallest");
    line.credit(account(1), 32 * MIB);
    assert_eq!(contenders(&line), [1, 2, 3]);
}

#[test]
fn full_account_keeps_its_group_in_order_and_nobody_else() {
    let mut line = WaitingLine::default();
    line.charge(limited(0, WRITES, 8));
    line.waiters.extend([limited(1, WRITES, 8), waiter(0, 2, MIB), limited(3, READS, 1)]);
    line.waiters.push_back(limited(4, WRITES, 0));
    assert_eq!(contenders(&line), [2, 3]);
    line.credit(WRITES, 4 * MIB);
    assert_eq!(contenders(&line), [2, 3], "a small request does not pass a large one of its group");
    line.credit(WRITES, 4 * MIB);
    assert_eq!(contenders(&line), [1, 2, 3]);
    line.leave(0, 1);
    assert_eq!(contenders(&line), [2, 3, 4]);
}

#[test]
fn connection_in_the_line_keeps_its_place_when_limits_change() {
    let mut line = WaitingLine::default();
    line.charge(limited(0, WRITES, 8));
    line.waiters.extend([limited(1, WRITES, 8), limited(2, WRITES, 8)]);
    assert!(line.renew(waiter(0, 1, 8 * MIB)) && !line.renew(waiter(0, 3, MIB)));
    assert!(!line.renew(waiter(1, 1, MIB)), "of another thread");
    assert_eq!(contenders(&line), [1]);
    assert_eq!(line.waiters.len(), 2);
}
