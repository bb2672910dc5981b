//! Servers as the target of a replay, with one client for each lane, all on the engine's thread.
//!
//! A lane is a server on which devices of the trace are replayed. The target owns the clients, the
//! slots of their requests, and the data buffers. Benchmarks use the same clients. nbd.rs and
//! vhost.rs create the target; the engine calls it.

use std::time::Duration;

use millrace_block::Op;
use millrace_machine::{Machine, Native};

use super::lane::{Done, Lane, Piece, Target};
use super::payload::Pool;
use crate::load::bench::BenchError;
use crate::load::client::{Client, ClientIo, DataMemory, DoneSlot};

#[derive(Default)]
struct Slots {
    ios: Vec<ClientIo>,
    free: Vec<u32>,
    /// For each of the client's request slots, the index of the request's I/O in the replay engine.
    taken_for: Vec<u32>,
}

pub(crate) struct Servers<C: Client> {
    clients: Vec<C>,
    slots: Vec<Slots>,
    depth: u32,
    lanes: Vec<Lane>,
    pool: Pool<Vec<u8>>,
    done: Vec<DoneSlot<C::Failure>>,
}

impl<C: Client> Servers<C> {
    pub(crate) fn new(servers: Vec<(C, Lane)>, depth: u32, seed: u64) -> Servers<C> {
        let slots = servers.iter().map(|_| Slots::default()).collect();
        let (clients, lanes) = servers.into_iter().unzip();
        let pool = Pool::new(|len| vec![0; len], seed);
        Servers { clients, slots, depth, lanes, pool, done: Vec::new() }
    }
}

impl<C: Client> Target for Servers<C> {
    fn lanes(&self) -> &[Lane] {
        &self.lanes
    }

    fn now_ns(&self) -> u64 {
        Native::now()
    }

    fn submit(&mut self, piece: &Piece) -> Result<bool, BenchError> {
        let Piece { lane, op, fua, offset_bytes, len_bytes, .. } = *piece;
        let slots = &mut self.slots[lane as usize];
        let slot = match slots.free.pop() {
            Some(slot) => slot,
            None if slots.ios.len() < self.depth as usize => {
                slots.ios.push(ClientIo::new(0, Vec::new()));
                slots.taken_for.push(0);
                slots.ios.len() as u32 - 1
            }
            None => return Ok(false),
        };
        slots.taken_for[slot as usize] = piece.slot;
        let memory = match op {
            Op::Write => self.pool.write(len_bytes as usize),
            Op::Read if C::DATA == DataMemory::OfIo => self.pool.read(len_bytes as usize),
            _ => Vec::new(),
        };
        let io = &mut slots.ios[slot as usize];
        *io = ClientIo { op, fua, offset_bytes, len_bytes, stamp_ns: 0, memory };
        self.clients[lane as usize].submit(slot, io)?;
        Ok(true)
    }

    fn start(&mut self) -> Result<(), BenchError> {
        self.clients.iter_mut().try_for_each(C::start)
    }

    fn poll(&mut self, done: &mut Vec<Done>) -> Result<(), BenchError> {
        let Servers { clients, slots, pool, done: ended, .. } = self;
        let clients = clients.iter_mut().zip(slots).filter(|(client, _)| client.in_flight() > 0);
        for (client, slots) in clients {
            client.reap(&mut slots.ios, ended)?;
            for (slot, failed) in ended.drain(..) {
                let io = &mut slots.ios[slot as usize];
                let memory = std::mem::take(&mut io.memory);
                if !memory.is_empty() {
                    pool.give_back(memory, io.op);
                }
                slots.free.push(slot);
                let error = failed.map(|status| format!("{status} from the server"));
                done.push(Done { slot: slots.taken_for[slot as usize], error });
            }
        }
        Ok(())
    }

    fn wait(&mut self, until_ns: u64) -> Result<(), BenchError> {
        let most = Duration::from_nanos(until_ns.saturating_sub(Native::now()));
        C::wait_any(&mut self.clients, most)
    }
}
