//! `BounceDriver`: reports to the block layer that all data of a drive goes through bounce buffers.
//!
//! If the plan asks for bounce buffers (`Linux24::bounce`), run.rs wraps the drive's driver with
//! this one. The wrapper reports each request with data as bounced, so that traces contain a B
//! (bounced) event for it. raw_job.rs copies the data, and linux24.rs charges the time of the
//! copies on a simulated machine.

use millrace_block::{
    CompletionBatch, Dispatch, Driver, DriverData, DriverQueue, Error, Expired, Moment, Request,
    Tag,
};
use millrace_machine::Machine;

use crate::filter::DriverFilter;

pub(super) struct BounceDriver<M: Machine>(pub(super) Box<dyn Driver<M>>);

impl<M: Machine> DriverFilter<M> for BounceDriver<M> {
    fn inner(&self) -> &dyn Driver<M> {
        &*self.0
    }

    fn open_queue(&self, index: u16, depth: u32) -> Result<Box<dyn DriverQueue<M>>, Error> {
        let (inner, bounced) = (self.0.open_queue(index, depth)?, vec![false; depth as usize]);
        Ok(Box::new(BounceQueue { inner, bounced }))
    }
}

struct BounceQueue<M: Machine> {
    inner: Box<dyn DriverQueue<M>>,
    /// For each tag, true if its request has data, which goes through a bounce buffer.
    bounced: Vec<bool>,
}

impl<M: Machine> DriverQueue<M> for BounceQueue<M> {
    fn queue_rq(&mut self, rq: &Request<M>) -> Dispatch {
        self.bounced[rq.tag().0 as usize] = rq.op().has_data();
        self.inner.queue_rq(rq)
    }

    fn is_bounced(&self, tag: Tag) -> bool {
        self.bounced[tag.0 as usize]
    }

    fn trace_data(&self, tag: Tag, moment: Moment) -> DriverData {
        self.inner.trace_data(tag, moment)
    }

    fn commit_rqs(&mut self) {
        self.inner.commit_rqs();
    }

    fn poll(&mut self, batch: &mut CompletionBatch) {
        self.inner.poll(batch);
    }

    fn timeout(&mut self, tag: Tag) -> Expired {
        self.inner.timeout(tag)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use millrace_block::blktrace::EventCode;
    use millrace_block::{
        Bio, Buffer, Channel, ChannelConfig, Disk, DiskConfig, TraceEvent, TraceSink, Volume,
    };
    use millrace_drives::open_on;
    use millrace_machine::Native;

    use super::*;
    use crate::filter::FilteredDriver;

    #[derive(Default)]
    struct RecordedActions(Mutex<Vec<EventCode>>);

    impl TraceSink for RecordedActions {
        fn trace(&self, event: &TraceEvent) {
            self.0.lock().expect("the simulation must not panic").push(event.action);
        }
    }

    #[test]
    fn request_with_data_has_a_bounce_between_insertion_and_issue() {
        let seen = Arc::new(RecordedActions::default());
        let inner = open_on::<Native>(&"null".parse().expect("the drive's spec must be valid"))
            .expect("it opens");
        let sink: Arc<dyn TraceSink> = seen.clone();
        let config = DiskConfig { trace: Some(sink), ..DiskConfig::default() };
        let disk = Disk::new(Box::new(FilteredDriver(BounceDriver(inner))), config)
            .expect("the disk must be created");
        let volume = Volume::single(disk).expect("the volume must be created");
        let mut channel =
            Channel::open(&volume, ChannelConfig::default()).expect("the channel must open");
        for (bio, bounces) in [(Bio::read(0, Buffer::new(512)), 1), (Bio::flush(), 0)] {
            channel.submit(bio).expect("it fits");
            channel.wait(1, |done| assert!(done.status.is_ok()));
            let actions =
                std::mem::take(&mut *seen.0.lock().expect("the simulation must not panic"));
            let place = |action| actions.iter().position(|seen| *seen == action);
            let count = actions.iter().filter(|action| **action == EventCode::Bounce).count();
            assert_eq!(count, bounces, "{actions:?}");
            if bounces > 0 {
                assert!(place(EventCode::Insert) < place(EventCode::Bounce), "{actions:?}");
                assert!(place(EventCode::Bounce) < place(EventCode::Issue), "{actions:?}");
            }
        }
    }
}
