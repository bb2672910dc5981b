//! A custom scheduler: an elevator that serves requests in ascending order of sectors, then starts
//! over.
//!
//! A scheduler gets the chains of bios that arrive at a hardware queue, and picks the one to
//! dispatch next. Merging with a waiting chain is one call; the block layer handles tags, flushes
//! and switching schedulers under load. `cargo run -p millrace --example own_scheduler`

use std::collections::BTreeMap;
use std::error::Error;

use millrace::scheduler::{
    BioChain, ChainBatch, CompletedChain, GroupId, Leftover, Scheduler, SchedulerPick,
};
use millrace::{BlockDevice, Native, Sector, VolumeOptions, build_volume};

/// Elevator of one hardware queue.
#[derive(Default)]
struct Elevator {
    /// Waiting chains by first sector, and in order of arrival at the same sector.
    waiting: BTreeMap<(Sector, u64), BioChain<Native>>,
    arrived: u64,
    /// Sector behind the last dispatched chain.
    head: Sector,
}

impl Scheduler<Native> for Elevator {
    fn insert(&mut self, batch: &mut ChainBatch<'_, Native>) {
        while let Some(mut chain) = batch.next() {
            // A chain that ends where this one begins is merged with it.
            let before = self.waiting.range_mut(..(chain.sector(), 0)).next_back();
            if let Some((_, before)) = before {
                match batch.merge(before, chain) {
                    Ok(()) => continue,
                    Err(apart) => chain = apart,
                }
            }
            self.arrived += 1;
            self.waiting.insert((chain.sector(), self.arrived), chain);
        }
    }

    fn next(&mut self, _now_ns: u64) -> SchedulerPick<Native> {
        let above = self.waiting.range((self.head, 0)..).next().or(self.waiting.iter().next());
        let Some(place) = above.map(|(place, _)| *place) else { return SchedulerPick::Nothing };
        let chain = self.waiting.remove(&place);
        self.head = chain.as_ref().map_or(0, BioChain::end);
        chain.map_or(SchedulerPick::Nothing, SchedulerPick::Chain)
    }

    fn completed(&mut self, _: &CompletedChain) {}

    fn pass(&mut self, _: GroupId, _: u64) -> bool {
        false
    }

    fn drain(&mut self, left: &mut Leftover<Native>) {
        std::mem::take(&mut self.waiting).into_values().for_each(|chain| left.push(chain));
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    run()
}

/// Sets the elevator as the scheduler of a volume's drive, and does I/O on the volume.
pub fn run() -> Result<(), Box<dyn Error>> {
    let drive = "model:preset=hdd7200,size=1g,data=ram".parse()?;
    let options = VolumeOptions::default();
    let (volume, _) = build_volume("v", millrace::Layout::Linear, &[drive], &options)?;
    volume.disks()[0].set_own_scheduler(|_| Box::<Elevator>::default())?;
    let mut device = BlockDevice::open(&volume)?;
    device.write_at(1 << 20, &[7; 4096])?;
    let mut read = [0; 4096];
    device.read_at(1 << 20, &mut read)?;
    assert_eq!(read, [7; 4096]);
    Ok(())
}
