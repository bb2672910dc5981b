//! Power cuts: flushed and FUA data survive, and every other sector holds an old or a new version.

use std::time::Duration;

use millrace_block::{Bio, Buffer, OpFlags, Status};
use millrace_drives::{Effect, FaultRule};

use crate::harness::{Dice, Kind, Plan, Rig, buffer_of, plans};

const SECTORS: usize = 96;

/// Versions that a sector may hold, as numbers of writes in order; 0 is the empty drive.
#[derive(Clone)]
struct History {
    versions: Vec<u64>,
    /// Number of `versions` that are acknowledged.
    acknowledged: usize,
    /// Index of the oldest version that may still be there after a crash.
    oldest: usize,
}

/// A bio in flight.
enum Sent {
    /// A write. `fua`: durable when acknowledged. `covers`: with PREFLUSH, the acknowledged count
    /// of each sector when it was issued.
    Write { first: usize, nr: usize, fua: bool, covers: Option<Vec<usize>> },
    /// The acknowledged count of each sector when the flush was issued.
    Flush(Vec<usize>),
}

struct Checker {
    sectors: Vec<History>,
    sent: Vec<Option<Sent>>,
    next_version: u64,
    dice: Dice,
}

impl Checker {
    fn new(seed: u64) -> Checker {
        let empty = History { versions: vec![0], acknowledged: 1, oldest: 0 };
        let dice = Dice(seed * 2 + 1);
        Checker { sectors: vec![empty; SECTORS], sent: Vec::new(), next_version: 1, dice }
    }

    fn acknowledged(&self) -> Vec<usize> {
        self.sectors.iter().map(|sector| sector.acknowledged).collect()
    }

    fn busy(&self, first: usize, nr: usize) -> bool {
        let overlaps = |sent: &Option<Sent>| match sent {
            Some(Sent::Write { first: other, nr: others, .. }) => {
                first < other + others && *other < first + nr
            }
            _ => false,
        };
        self.sent.iter().any(overlaps)
    }

    fn step(&mut self, rig: &mut Rig) {
        let number = self.sent.len() as u64;
        let (bio, sent) = match self.dice.roll(8) {
            0 => (Bio::flush(), Sent::Flush(self.acknowledged())),
            kind => {
                let first = self.dice.roll(SECTORS as u64) as usize;
                let nr = (1 + self.dice.roll(20) as usize).min(SECTORS - first);
                if self.busy(first, nr) {
                    return;
                }
                let mut data = vec![0u8; nr * 512];
                for (at, piece) in data.chunks_mut(512).enumerate() {
                    let stamp = [self.next_version, (first + at) as u64];
                    piece[..8].copy_from_slice(&stamp[0].to_le_bytes());
                    piece[504..].copy_from_slice(&stamp[1].to_le_bytes());
                    self.sectors[first + at].versions.push(self.next_version);
                }
                self.next_version += 1;
                let mut flags = OpFlags::NONE;
                flags = if kind == 1 { flags.with(OpFlags::FUA) } else { flags };
                let preflush = self.dice.roll(12) == 0;
                flags = if preflush { flags.with(OpFlags::PREFLUSH) } else { flags };
                let covers = preflush.then(|| self.acknowledged());
                let bio = Bio::write(first as u64, buffer_of(&data)).with_flags(flags);
                (bio, Sent::Write { first, nr, fua: kind == 1, covers })
            }
        };
        self.sent.push(Some(sent));
        rig.submit(bio.with_user_data(number));
    }

    fn flushed(&mut self, counts: &[usize]) {
        for (sector, count) in self.sectors.iter_mut().zip(counts) {
            sector.oldest = sector.oldest.max(count - 1);
        }
    }

    /// Records completions. Bios that complete after a cut may have failed, and a flush sent before
    /// the cut may have run after it, when the data it was to cover were lost already.
    fn note(&mut self, rig: &mut Rig, was_cut: bool) {
        for done in std::mem::take(&mut rig.back) {
            let sent = self.sent[done.user_data as usize].take().expect("answered once");
            if done.status != Status::Ok {
                assert!(was_cut, "{:?} without a cut", done.status);
                continue;
            }
            match sent {
                Sent::Flush(_) if was_cut => {}
                Sent::Flush(counts) => self.flushed(&counts),
                Sent::Write { first, nr, fua, covers } => {
                    if let Some(counts) = covers.filter(|_| !was_cut) {
                        self.flushed(&counts);
                    }
                    for sector in &mut self.sectors[first..first + nr] {
                        sector.acknowledged = sector.versions.len();
                        if fua && !was_cut {
                            sector.oldest = sector.versions.len() - 1;
                        }
                    }
                }
            }
        }
    }

    /// Reads all sectors after a cut; the versions found are durable from now on.
    fn check(&mut self, rig: &mut Rig, cut: u64) {
        let data = rig.read(0, SECTORS * 512);
        for (at, piece) in data.chunks(512).enumerate() {
            let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
            let (version, place) = (number(&piece[..8]), number(&piece[504..]));
            let sector = &mut self.sectors[at];
            let allowed = &sector.versions[sector.oldest..];
            assert!(allowed.contains(&version), "cut {cut}: sector {at}: {version}, {allowed:?}");
            assert!(version == 0 || place == at as u64, "cut {cut}: sector {at} holds {place}'s");
            *sector = History { versions: vec![version], acknowledged: 1, oldest: 0 };
        }
        self.sent.clear();
    }
}

/// Cuts the power of a striped volume many times under load; returns how many sectors were lost.
fn cut_power(plan: Plan, cuts: u64, seed: u64) -> u64 {
    let mut rig = Rig::new(&plan.stripe(2, 8));
    for fault in &rig.drives.faults {
        // The delay keeps some bios in flight at each cut.
        let slow = FaultRule::always(Effect::Delay(Duration::from_nanos(30_000)));
        fault.add_rule(slow.with_chance(millrace_drives::Chance::Rate(0.3)));
    }
    let (mut checker, mut lost) = (Checker::new(seed), 0);
    for cut in 0..cuts {
        for _ in 0..20 + checker.dice.roll(60) {
            checker.step(&mut rig);
            if checker.dice.roll(3) == 0 {
                rig.step(0);
                checker.note(&mut rig, false);
            }
        }
        for (number, fault) in rig.drives.faults.iter().enumerate() {
            lost += fault.power_cut(seed * 1000 + cut * 2 + number as u64);
        }
        rig.until("bios after the cut", |rig| rig.channel.in_flight() == 0);
        checker.note(&mut rig, true);
        // Bios still in the plug at the cut went out after it; without this flush the next cut
        // would lose them.
        rig.run_ok(Bio::flush());
        checker.check(&mut rig, cut);
    }
    lost
}

#[test]
fn flushed_and_fua_writes_survive_240_power_cuts() {
    for kind in [Kind::FaultVolatile, Kind::FaultVolatileWithoutFua] {
        for (seed, plan) in plans(&[kind]).enumerate() {
            let lost = cut_power(plan, 40, seed as u64 + 1);
            assert!(lost > 100, "only {lost} sectors were lost: the test tests nothing");
        }
    }
}

#[test]
fn unflushed_writes_are_lost_in_part_and_flushed_ones_are_not() {
    for plan in plans(&[Kind::FaultVolatile]) {
        let mut rig = Rig::new(&plan);
        let ones = vec![1u8; 256 * 512];
        rig.write(0, &ones);
        let lost = rig.drives.faults[0].power_cut(5) as usize;
        let back = rig.read(0, ones.len());
        let gone = back.chunks(512).filter(|sector| sector.iter().all(|byte| *byte == 0)).count();
        assert!(gone == lost && (64..192).contains(&lost), "{lost} of 256 sectors");
        rig.write(0, &ones);
        rig.run_ok(Bio::flush());
        assert_eq!(rig.drives.faults[0].power_cut(6), 0);
        assert!(rig.read(0, ones.len()) == ones);
    }
}

#[test]
fn bios_in_flight_at_a_cut_fail() {
    for plan in plans(&[Kind::FaultVolatile]) {
        let mut rig = Rig::new(&plan);
        rig.drives.faults[0]
            .add_rule(FaultRule::always(Effect::Delay(Duration::from_nanos(100_000_000))));
        rig.submit(Bio::write(0, Buffer::new(4096)));
        rig.submit(Bio::flush());
        rig.step(0);
        rig.drives.faults[0].power_cut(1);
        assert!(rig.drain().iter().all(|done| done.status == Status::IoError));
        rig.drives.faults[0].clear_rules();
        rig.run_ok(Bio::flush());
    }
}
