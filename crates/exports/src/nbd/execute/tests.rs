//! Tests the details of executing requests that no client of the other tests would notice: errors,
//! flags, counts, extents.

use super::super::connection::ConnectionPhase;
use super::super::tests::{MIB, Rig, connection, header, request};
use super::*;
use millrace_block::GroupId;
use millrace_nbd::status::{DescriptorWidth, descriptors};
use millrace_nbd::wire::{OPT_GO, OPT_SET_META_CONTEXT, OPT_STRUCTURED_REPLY, put_option};
use millrace_nbd::{ExportInfo, RequestLimits, Session, TransmissionFlags};

#[test]
fn every_outcome_of_a_drive_has_its_error() {
    let of = |status| errno_of(status);
    assert_eq!(of(Status::Ok), None);
    for (status, errno) in [
        (Status::NoSpace, Errno::Enospc),
        (Status::NotSupported, Errno::Enotsup),
        (Status::Invalid, Errno::Einval),
        (Status::OutOfRange, Errno::Einval),
        (Status::ReadOnly, Errno::Eperm),
        (Status::NoResource, Errno::Enomem),
        (Status::Aborted, Errno::Eshutdown),
        (Status::IoError, Errno::Eio),
        (Status::TimedOut, Errno::Eio),
        (Status::Offline, Errno::Eio),
    ] {
        assert_eq!(of(status), Some(errno), "{status:?}");
    }
}

#[test]
fn fua_is_for_what_writes_and_sectors_are_of_512_bytes() {
    let rig = Rig::new(&["null:size=1m"], |_| ());
    let (conn, _sockets) = connection(9);
    let granted = granted();
    for (op, flags, fua) in [
        (Op::Read, CMD_FLAG_FUA, false),
        (Op::Write, CMD_FLAG_FUA, true),
        (Op::Write, 0, false),
        (Op::Read, 0, false),
        (Op::Discard, CMD_FLAG_FUA, true),
    ] {
        let request = Request { flags, ..request(Command::Write, 5 * 512, 512) };
        let ticket = rig.core.ticket(&conn, asked(&granted, &request), op);
        assert_eq!((ticket.flags.has(OpFlags::FUA), ticket.sector), (fua, 5), "{op:?}");
        assert_eq!((ticket.owner.conn, ticket.owner.serial), (0, 9));
    }
}

fn asked<'a>(granted: &'a ExportSession, request: &'a Request) -> ClientRequest<'a> {
    ClientRequest { granted, request }
}

fn granted() -> ExportSession {
    let session = super::super::tests::session();
    let info = ExportInfo {
        name: String::new(),
        description: String::new(),
        size_bytes: 1 << 20,
        flags: TransmissionFlags::new(),
        block_min: 512,
        block_preferred: 4096,
        block_max: 1 << 25,
    };
    ExportSession {
        session,
        rules: RequestLimits::new(&info, &session),
        lane: 0,
        no_payload: false,
        block_bytes: 512,
        group: GroupId::DEFAULT,
    }
}

/// Opens a connection with structured replies and the context `base:allocation`.
fn with_status(rig: &mut Rig) -> std::os::unix::net::UnixStream {
    let (mut client, index) = rig.connect();
    let mut out = 3u32.to_be_bytes().to_vec();
    put_option(&mut out, OPT_STRUCTURED_REPLY, &[]);
    let context = b"\0\0\0\0\0\0\0\x01\0\0\0\x0fbase:allocation";
    put_option(&mut out, OPT_SET_META_CONTEXT, context);
    put_option(&mut out, OPT_GO, &[0; 6]);
    std::io::Write::write_all(&mut client, &out).unwrap();
    // Greeting; acknowledgement; context and acknowledgement; export, block sizes, and the last.
    rig.receive(&mut client, 18 + 20 + (20 + 4 + 15) + 20 + (20 + 12) + (20 + 14) + 20);
    assert_eq!(rig.conns[index].as_ref().unwrap().phase, ConnectionPhase::Transmission);
    client
}

/// Queries the block status of a range. Returns each extent as its length, and whether it is a hole
/// and reads as zeroes.
fn status(
    rig: &mut Rig,
    client: &mut std::os::unix::net::UnixStream,
    (flags, offset, length): (u16, u64, u64),
) -> Vec<(u64, bool, bool)> {
    let request = Request { flags, ..request(Command::BlockStatus, offset, length) };
    std::io::Write::write_all(client, &header(&request)).unwrap();
    let head = rig.receive(client, 20);
    assert_eq!(head[..8], *b"\x66\x8e\x33\xef\0\x01\0\x05", "the last chunk, of block status");
    let payload = u32::from_be_bytes(head[16..20].try_into().unwrap());
    let payload = rig.receive(client, payload as usize);
    assert_eq!(payload[..4], [0, 0, 0, 1], "id of the context");
    descriptors(&payload[4..], DescriptorWidth::Bits32)
        .map(|one| (one.len, one.hole, one.zero))
        .collect()
}

#[test]
fn block_status_spans_first_to_last_byte_of_a_request() {
    let mut rig = Rig::new(&["ram:size=8m"], |_| ());
    let mut client = with_status(&mut rig);
    let data = vec![1; MIB];
    let write = [header(&request(Command::Write, MIB as u64, MIB as u64)), data].concat();
    let (mut writer, _) = rig.by_hand("0");
    writer.set_nonblocking(false).unwrap();
    std::thread::scope(|scope| {
        let sending = &mut writer;
        let sent = scope.spawn(move || std::io::Write::write_all(sending, &write));
        rig.until("it is written", |rig| rig.core.counts.copied_bytes > 0 || sent.is_finished());
        rig.until("all is sent", |_| sent.is_finished());
        sent.join().unwrap().unwrap();
    });
    writer.set_nonblocking(true).unwrap();
    rig.receive(&mut writer, 16);
    const M: u64 = MIB as u64;
    let (hole, data) = ((M, true, true), (M, false, false));
    let mut of = |flags, offset, length| status(&mut rig, &mut client, (flags, offset, length));
    assert_eq!(of(0, 0, 3 * M), [hole, data, hole]);
    assert_eq!(of(CMD_FLAG_REQ_ONE, 0, 3 * M), [hole]);
    assert_eq!(of(0, 700, 3 * M - 700), [(M - 700, true, true), data, hole]);
    assert_eq!(of(0, M + 1, M), [(M - 1, false, false), (1, true, true)]);
    assert_eq!(of(0, M - 1, 2), [(1, true, true), (1, false, false)]);
    assert_eq!(of(0, 8 * M - 5, 5), [(5, true, true)]);
    assert_eq!(of(0, M + 100, 100), [(100, false, false)]);
    assert_eq!((rig.core.pool.in_use(), rig.core.counts.errors), (0, 0));
}

#[test]
fn faults_of_clients_that_are_gone_count_for_their_volume() {
    let mut rig = Rig::new(&["null:size=1m", "null:size=1m"], |_| ());
    rig.core.exports.note_fault(&rig.shared.exports().volumes[1], Status::IoError);
    let counts = |rig: &Rig| {
        rig.shared.exports().list.iter().map(|one| one.faults.report("").count).collect::<Vec<_>>()
    };
    assert_eq!(counts(&rig), [0, 1]);
    let (mut conn, _sockets) = connection(1);
    let reply = Reply::new(&request(Command::Read, 0, 512), &super::super::tests::session());
    rig.core.fail(&mut conn, &reply, Status::IoError);
    assert_eq!((counts(&rig), rig.core.counts.errors), (vec![0, 1], 1));
    conn.granted = Some(granted());
    let export = Arc::clone(&rig.shared.exports().list[0]);
    let seat = export.group.enter();
    conn.history.export = Some((export, seat));
    rig.core.fail(&mut conn, &reply, Status::TimedOut);
    assert_eq!((counts(&rig), rig.core.counts.errors), (vec![1, 1], 2));
    conn.in_flight = 0;
    rig.core.refuse_stuck(&mut conn, asked(&granted(), &request(Command::Read, 0, 512)));
    assert_eq!((counts(&rig), rig.core.counts.errors), (vec![2, 1], 3));
    assert_eq!(conn.in_flight, 1);
    assert!(conn.out.has_gathered());
}

#[test]
fn a_session_without_a_context_has_no_block_status() {
    let mut rig = Rig::new(&["null:size=1m"], |_| ());
    let (mut conn, _sockets) = connection(1);
    let session: Session = super::super::tests::session();
    assert_eq!(session.base_allocation, None);
    rig.core.block_status(&mut conn, asked(&granted(), &request(Command::BlockStatus, 0, 512)));
    assert_eq!((conn.in_flight, rig.core.counts.errors), (1, 1));
    assert_eq!(rig.core.pool.in_use(), 0);
}

#[test]
fn order_without_data_has_its_client_flags_and_no_others() {
    let mut rig = Rig::new(&["null:size=1m"], |_| ());
    let (mut conn, _sockets) = connection(1);
    let (fua, no_hole, fast) = (CMD_FLAG_FUA, CMD_FLAG_NO_HOLE, CMD_FLAG_FAST_ZERO);
    let (none, both) = (OpFlags::NONE, OpFlags::FUA.with(OpFlags::NOUNMAP));
    let zero = |flags| Some((Op::WriteZeroes, flags, false, 8));
    // The block layer's discard has no FUA flag, so the server sends a flush after the discard.
    for (command, flags, expected) in [
        (Command::Flush, 0, Some((Op::Flush, none, false, 0))),
        (Command::Trim, 0, Some((Op::Discard, none, false, 8))),
        (Command::Trim, fua, Some((Op::Discard, none, true, 8))),
        (Command::Trim, no_hole, Some((Op::Discard, none, false, 8))),
        (Command::Trim, no_hole | fast, Some((Op::Discard, none, false, 8))),
        (Command::WriteZeroes, 0, zero(none)),
        (Command::WriteZeroes, fua, zero(OpFlags::FUA)),
        (Command::WriteZeroes, no_hole, zero(OpFlags::NOUNMAP)),
        (Command::WriteZeroes, fua | no_hole, zero(both)),
        (Command::WriteZeroes, fast, zero(none)),
        (Command::WriteZeroes, no_hole | fast, None),
    ] {
        let length = if command == Command::Flush { 0 } else { 4096 };
        let request = Request { flags, ..request(command, 512, length) };
        let (errors, in_flight) = (rig.core.counts.errors, conn.in_flight);
        rig.core.command(&mut conn, asked(&granted(), &request));
        assert_eq!(conn.in_flight, in_flight + 1);
        let made: Vec<_> = rig
            .core
            .submitter
            .tickets
            .iter_mut()
            .map(|(id, ticket)| {
                (id, (ticket.op, ticket.flags, ticket.then_flush, ticket.left_sectors))
            })
            .collect();
        let ids: Vec<u32> = made.iter().map(|(id, _)| *id).collect();
        assert_eq!(made.first().map(|(_, one)| *one), expected, "{command:?} {flags:#x}");
        assert_eq!(rig.core.counts.errors - errors, u64::from(expected.is_none()));
        rig.core.submitter.poll();
        rig.core.submitter.done.clear();
        ids.into_iter().for_each(|id| drop(rig.core.submitter.end(id)));
    }
}
