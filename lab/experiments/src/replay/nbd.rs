//! NBD servers as a target: a connection to the export of each lane, all on the engine's thread.
//!
//! Owns the connections and the buffers of their requests. Any server: what it does not take, its
//! flags say, and the lane with them. Called by the engine.

use std::time::Duration;

use millrace_block::Op;
use millrace_clients::nbd::{Client, Completion, wait_any};
use millrace_machine::{Machine, Native};
use millrace_nbd::client::{ClientSession, NbdUri};
use millrace_nbd::wire::CMD_FLAG_FUA;
use millrace_nbd::{Command, Request, TransmissionFlags};

use super::lane::{Done, Lane, Piece, PieceLimits, Target};
use super::payload::Pool;
use super::route::Addresses;
use crate::load::bench::BenchError;
use crate::load::overwrite::{DiskContents, nbd_contents};

/// Longest read or write in one request: so much memory it has.
const DATA_BYTES_MAX: u64 = 8 << 20;
/// Longest range without data in one request.
const RANGE_BYTES_MAX: u64 = 1 << 30;

/// Connections to servers.
pub(crate) struct Servers {
    clients: Vec<(NbdUri, Client)>,
    lanes: Vec<Lane>,
    pool: Pool<Vec<u8>>,
}

impl Servers {
    /// Connects to each.
    ///
    /// # Errors
    /// If a server cannot be reached or breaks the protocol.
    pub(crate) fn connect(
        uris: &[(String, NbdUri)],
        addresses: &Addresses,
        seed: u64,
    ) -> Result<Servers, BenchError> {
        let pool = Pool::new(|len| vec![0; len], seed);
        let mut servers = Servers { clients: Vec::new(), lanes: Vec::new(), pool };
        for (name, uri) in uris {
            let mut client = Client::connect(uri).map_err(|source| failed(uri, source))?;
            let mut lane = lane_of(name, client.session());
            // What may be written over is not looked at.
            if !addresses.overwrite {
                lane.contents = nbd_contents(&mut client).map_err(|source| failed(uri, source))?;
            }
            servers.clients.push((uri.clone(), client));
            servers.lanes.push(lane);
        }
        Ok(servers)
    }
}

fn failed(uri: &NbdUri, source: std::io::Error) -> BenchError {
    BenchError::Server { address: uri.address.clone(), source }
}

fn lane_of(name: &str, session: &ClientSession) -> Lane {
    let has = |flag: TransmissionFlags| session.flags.bits() & flag.bits() == flag.bits();
    let block_bytes = u64::from(session.block_min).clamp(1, 65_536).next_power_of_two();
    let whole = |bytes: u64| (bytes / block_bytes).max(1) * block_bytes;
    let range = |flag| if has(flag) { whole(RANGE_BYTES_MAX) } else { 0 };
    Lane {
        name: name.to_owned(),
        size_bytes: session.size_bytes / block_bytes * block_bytes,
        block_bytes,
        takes: PieceLimits {
            data_bytes_max: whole(DATA_BYTES_MAX.min(session.block_max.into())),
            discard_bytes_max: range(TransmissionFlags::TRIM),
            zeroes_bytes_max: range(TransmissionFlags::WRITE_ZEROES),
            flush: has(TransmissionFlags::FLUSH),
            fua: has(TransmissionFlags::FUA),
        },
        is_read_only: has(TransmissionFlags::READ_ONLY),
        contents: DiskContents::Empty,
    }
}

/// What goes with a request beside its slot: writes' buffers stay apart from reads'.
fn cookie(piece: &Piece) -> u64 {
    u64::from(piece.slot) << 1 | u64::from(piece.op == Op::Write)
}

impl Target for Servers {
    fn lanes(&self) -> &[Lane] {
        &self.lanes
    }

    fn now_ns(&self) -> u64 {
        Native::now()
    }

    fn submit(&mut self, piece: &Piece) -> Result<bool, BenchError> {
        let len = piece.len_bytes as usize;
        let (command, buffer) = match piece.op {
            Op::Read => (Command::Read, self.pool.read(len)),
            Op::Write => (Command::Write, self.pool.write(len)),
            Op::Flush => (Command::Flush, Vec::new()),
            Op::Discard => (Command::Trim, Vec::new()),
            Op::WriteZeroes => (Command::WriteZeroes, Vec::new()),
        };
        let request = Request {
            cookie: cookie(piece),
            flags: if piece.fua { CMD_FLAG_FUA } else { 0 },
            command,
            offset: piece.offset_bytes,
            length: piece.len_bytes,
        };
        let (uri, client) = &mut self.clients[piece.lane as usize];
        client.submit(&request, buffer).map_err(|source| failed(uri, source))?;
        Ok(true)
    }

    fn start(&mut self) -> Result<(), BenchError> {
        let mut clients = self.clients.iter_mut();
        clients.try_for_each(|(uri, client)| client.flush().map_err(|source| failed(uri, source)))
    }

    fn poll(&mut self, done: &mut Vec<Done>) -> Result<(), BenchError> {
        let Servers { clients, pool, .. } = self;
        for (uri, client) in clients.iter_mut().filter(|(_, client)| client.in_flight() > 0) {
            let take = |Completion { user_data, errno, buffer, .. }| {
                let error = errno.map(|errno| format!("{errno} from the server"));
                done.push(Done { slot: (user_data >> 1) as u32, error });
                if !buffer.is_empty() {
                    let op = if user_data & 1 == 1 { Op::Write } else { Op::Read };
                    pool.give_back(buffer, op);
                }
            };
            client.poll(take).map_err(|source| failed(uri, source))?;
        }
        Ok(())
    }

    fn wait(&mut self, until_ns: u64) -> Result<(), BenchError> {
        let most = Duration::from_nanos(until_ns.saturating_sub(Native::now()));
        // A server that hangs up between two requests is found out by the next one.
        let busy = self.clients.iter().filter(|(_, client)| client.in_flight() > 0);
        wait_any(busy.map(|(_, client)| client), most)
            .map_err(|source| failed(&self.clients[0].0, source))
    }
}
