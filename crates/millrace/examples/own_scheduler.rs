//! A scheduler of one's own: an elevator, which serves what waits on its way up, then begins anew.
//!
//! A scheduler takes the chains of bios that come to a hardware queue and says which of them goes
//! to the drive next. Merging with what waits is one call; tags, flushes and the change from one
//! scheduler to another under load are the layer's business.
//! `cargo run -p millrace --example own_scheduler`

use std::collections::BTreeMap;
use std::error::Error;

use millrace::scheduler::{
    BioChain, ChainBatch, CompletedChain, GroupId, Leftover, Scheduler, SchedulerPick,
};
use millrace::{BlockDevice, Native, Sector, VolumeOptions, build_volume};

/// The elevator of one hardware queue.
#[derive(Default)]
struct Elevator {
    /// What waits, by its first sector; of several at one sector the older one comes first.
    waiting: BTreeMap<(Sector, u64), BioChain<Native>>,
    arrived: u64,
    /// Where the elevator is.
    head: Sector,
}

impl Scheduler<Native> for Elevator {
    fn insert(&mut self, batch: &mut ChainBatch<'_, Native>) {
        while let Some(mut chain) = batch.next() {
            // One that ends where this one begins takes it along.
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

    fn pass(&mut self, _: GroupId, _: (u32, u64), _: u64) -> bool {
        false
    }

    fn drain(&mut self, left: &mut Leftover<Native>) {
        std::mem::take(&mut self.waiting).into_values().for_each(|chain| left.push(chain));
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    run()
}

/// Gives the drive of a volume the elevator, and uses the volume.
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
