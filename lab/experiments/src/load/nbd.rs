//! Runs a benchmark against an NBD server, with a connection for each job.
//!
//! Checks that the workload fits the export, and implements `Client` for a connection. job.rs and
//! client.rs have the loop; the clients crate has the NBD client.

use std::time::Duration;

use millrace_block::Op;
use millrace_clients::nbd::{Client as NbdClient, Completion, wait_any};
use millrace_clients::vhost::Counters;
use millrace_nbd::client::NbdUri;
use millrace_nbd::wire::CMD_FLAG_FUA;
use millrace_nbd::{Command, Errno, Request};

use crate::load::bench::{BenchError, Plan, Progress, check_capacity, check_verify};
use crate::load::client::{Client, ClientIo, DataMemory, DoneSlot, run_clients};
use crate::load::row::{Queues, Row};

/// Measures one configuration against the export that `uri` names.
///
/// # Errors
/// If the server cannot be reached or breaks the protocol, or the workload does not fit the export.
pub fn run_nbd_row(uri: &NbdUri, plan: &Plan, progress: Progress<'_>) -> Result<Row, BenchError> {
    let probe = Connection::new(uri)?.client;
    check(&probe, plan)?;
    let size_bytes = probe.session().size_bytes;
    drop(probe);
    let connect = {
        let uri = uri.clone();
        move |_| Connection::new(&uri)
    };
    let (mut row, _) = run_clients(plan, size_bytes, connect, progress)?;
    row.queues = Queues { stack: "nbd".to_owned(), ..row.queues };
    row.drives = format!("{uri:?}");
    Ok(row)
}

fn check(client: &NbdClient, plan: &Plan) -> Result<(), BenchError> {
    let (session, workload) = (client.session(), &plan.workload);
    let (bs, size) = (u64::from(workload.bs_bytes), session.size_bytes);
    let wrong = |text: String| Err(BenchError::Workload(text));
    if !bs.is_multiple_of(session.block_min.max(1).into()) || bs > session.block_max.into() {
        let (least, most) = (session.block_min, session.block_max);
        return wrong(format!("bs={bs}: the server takes multiples of {least} up to {most}"));
    }
    check_capacity(plan, size)?;
    check_verify(plan, size)
}

const WAIT: Duration = Duration::from_secs(10);

pub(crate) struct Connection {
    pub(crate) client: NbdClient,
    pub(crate) uri: NbdUri,
}

impl Connection {
    pub(crate) fn new(uri: &NbdUri) -> Result<Connection, BenchError> {
        let client = NbdClient::connect(uri).map_err(|source| failed(uri, source))?;
        Ok(Connection { client, uri: uri.clone() })
    }
}

#[cold]
pub(crate) fn failed(uri: &NbdUri, source: std::io::Error) -> BenchError {
    BenchError::Server { address: uri.address.clone(), source }
}

impl Client for Connection {
    const DATA: DataMemory = DataMemory::OfIo;
    type Failure = Errno;

    fn in_flight(&self) -> u32 {
        self.client.in_flight() as u32
    }

    fn submit(&mut self, slot: u32, io: &mut ClientIo) -> Result<(), BenchError> {
        let command = match io.op {
            Op::Read => Command::Read,
            Op::Write => Command::Write,
            Op::Flush => Command::Flush,
            Op::Discard => Command::Trim,
            Op::WriteZeroes => Command::WriteZeroes,
        };
        let flags = if io.fua { CMD_FLAG_FUA } else { 0 };
        let (offset, length) = (io.offset_bytes, io.len_bytes);
        let request = Request { cookie: slot.into(), flags, command, offset, length };
        let memory = std::mem::take(&mut io.memory);
        self.client.submit(&request, memory).map_err(|source| failed(&self.uri, source))
    }

    fn start(&mut self) -> Result<(), BenchError> {
        self.client.flush().map_err(|source| failed(&self.uri, source))
    }

    fn reap(
        &mut self,
        ios: &mut [ClientIo],
        done: &mut Vec<DoneSlot<Errno>>,
    ) -> Result<(), BenchError> {
        let take = |Completion { user_data, errno, buffer, .. }| {
            ios[user_data as usize].memory = buffer;
            done.push((user_data as u32, errno));
        };
        self.client.poll(take).map_err(|source| failed(&self.uri, source))?;
        Ok(())
    }

    fn wait(&mut self) -> Result<(), BenchError> {
        Connection::wait_any(std::slice::from_mut(self), WAIT)
    }

    fn wait_any(clients: &mut [Connection], most: Duration) -> Result<(), BenchError> {
        // Do not wait on connections without requests in flight. If the server closed such a
        // connection, the next request on that connection fails.
        let busy = clients.iter().filter(|connection| connection.client.in_flight() > 0);
        wait_any(busy.map(|connection| &connection.client), most)
            .map_err(|source| failed(&clients[0].uri, source))
    }

    fn counters(&mut self) -> Counters {
        Counters::default()
    }
}
