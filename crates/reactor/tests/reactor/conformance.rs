//! The suite that both back ends pass, with one test for each guarantee of a reactor.
//!
//! Owns its sockets and files through `tempfile` and std. `both!` makes two tests of each function,
//! one per back end; where io_uring is refused, its half prints the reason and passes.

use crate::both;
use crate::common::*;
use millrace_reactor::{FileRef, Op, Wait, now_ns};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

both!(
    a_large_echo_arrives_whole_through_partial_sends,
    accept_gives_a_connection_that_receives,
    accept_waits_also_on_a_nonblocking_listener,
    a_nonblocking_socket_never_shows_eagain,
    recvmsg_with_waitall_gathers_two_sends,
    files_are_read_written_synced_and_allocated,
    vectored_reads_and_writes_keep_their_order,
    errors_of_files_are_passed_through,
    registered_files_and_buffers_work_or_are_declined,
    lent_memory_is_registered_before_it_is_used,
    lent_memory_is_registered_in_pieces_until_it_is_taken_back,
    a_timeout_is_never_early,
    a_write_to_the_wake_fd_ends_a_forever_turn,
    cancel_ends_a_pending_receive,
    cancel_ends_a_pending_timeout,
    cancel_of_an_unknown_operation_is_enoent,
    release_drops_later_completions,
    a_released_accept_closes_its_connection,
    ten_thousand_operations_go_through_eight_entries,
    a_hang_up_is_a_receive_of_zero,
    a_send_to_a_closed_peer_is_epipe_and_no_signal,
    turn_until_returns_on_time_with_nothing_done,
    an_idle_forever_turn_uses_no_cpu,
    an_empty_turn_makes_no_system_call,
    an_eventfd_is_read_when_it_is_written,
    poll_in_reports_readiness_once,
    ioctl_runs_on_the_pool,
    close_closes,
    a_busy_poll_still_sees_wakes_and_timeouts,
    a_dropped_reactor_cancels_what_is_outstanding,
    two_sources_get_their_own_completions,
);

fn a_large_echo_arrives_whole_through_partial_sends(rig: &mut Rig) {
    const TOTAL: usize = 1 << 20;
    let (ours, theirs) = UnixStream::pair().unwrap();
    let echo = std::thread::spawn(move || {
        let mut theirs = theirs;
        let mut back = theirs.try_clone().unwrap();
        std::io::copy(&mut theirs, &mut back).unwrap();
    });
    let out: Vec<u8> = (0..TOTAL).map(|i| (i * 7 + i / 251) as u8).collect();
    let mut input = vec![0u8; TOTAL];
    let (mut sent, mut received) = (0, 0);
    let fd = ours.as_raw_fd();
    let send = |sent: usize| Op::Send {
        fd,
        buf: out[sent..].as_ptr(),
        len: (TOTAL - sent).min(300_000) as u32,
        flags: 0,
    };
    let base = input.as_mut_ptr();
    let recv = |received: usize| Op::Recv {
        fd,
        buf: base.wrapping_add(received),
        len: (TOTAL - received) as u32,
    };
    rig.push(1, send(0));
    rig.push(2, recv(0));
    while received < TOTAL {
        for done in rig.next() {
            assert!(done.result > 0, "{done:?}");
            if done.user_data == 1 {
                sent += done.result as usize;
                if sent < TOTAL {
                    rig.push(1, send(sent));
                }
            } else {
                received += done.result as usize;
                if received < TOTAL {
                    rig.push(2, recv(received));
                }
            }
        }
    }
    assert_eq!(rig.pending(), 0);
    assert!(out == input);
    drop(ours);
    echo.join().unwrap();
}

fn accept_from(rig: &mut Rig, nonblocking: bool) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    listener.set_nonblocking(nonblocking).unwrap();
    rig.push(1, Op::Accept { fd: listener.as_raw_fd() });
    rig.reactor.turn(Wait::No).unwrap();
    let mut client = UnixStream::connect(&path).unwrap();
    let fd = rig.result(1);
    assert!(fd >= 0, "{fd}");
    // SAFETY: the accept's result is a new descriptor that nobody else owns.
    let server = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: fcntl with F_GETFD touches no memory.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
    assert_ne!(flags & libc::FD_CLOEXEC, 0);
    std::io::Write::write_all(&mut client, b"hello").unwrap();
    let mut buf = [0u8; 16];
    rig.push(2, Op::Recv { fd: server.as_raw_fd(), buf: buf.as_mut_ptr(), len: 16 });
    assert_eq!(rig.result(2), 5);
    assert_eq!(&buf[..5], b"hello");
}

fn accept_gives_a_connection_that_receives(rig: &mut Rig) {
    accept_from(rig, false);
}

fn accept_waits_also_on_a_nonblocking_listener(rig: &mut Rig) {
    accept_from(rig, true);
}

fn a_nonblocking_socket_never_shows_eagain(rig: &mut Rig) {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let mut buf = [0u8; 8];
    let mut iov = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: 8 };
    let mut msg = header(std::slice::from_mut(&mut iov));
    let fd = ours.as_raw_fd();
    rig.push(1, Op::RecvMsg { fd, msg: &raw mut msg, flags: libc::MSG_DONTWAIT });
    rig.settle();
    assert_eq!(rig.pending(), 1);
    std::io::Write::write_all(&mut theirs, b"late").unwrap();
    assert_eq!(rig.result(1), 4);
}

fn recvmsg_with_waitall_gathers_two_sends(rig: &mut Rig) {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let (mut one, mut two) = ([0u8; 3], [0u8; 5]);
    let mut iov = [
        libc::iovec { iov_base: one.as_mut_ptr().cast(), iov_len: 3 },
        libc::iovec { iov_base: two.as_mut_ptr().cast(), iov_len: 5 },
    ];
    let mut msg = header(&mut iov);
    let fd = ours.as_raw_fd();
    rig.push(1, Op::RecvMsg { fd, msg: &raw mut msg, flags: libc::MSG_WAITALL });
    std::io::Write::write_all(&mut theirs, b"abcd").unwrap();
    rig.settle();
    assert_eq!(rig.pending(), 1);
    std::io::Write::write_all(&mut theirs, b"efgh").unwrap();
    assert_eq!(rig.result(1), 8);
    assert_eq!((&one, &two), (b"abc", b"defgh"));
}

fn files_are_read_written_synced_and_allocated(rig: &mut Rig) {
    let file = tempfile::tempfile().unwrap();
    let file_ref = FileRef::Raw(file.as_raw_fd());
    let data = vec![0xa5u8; 8192];
    let write = |rw_flags| Op::Write {
        file: file_ref,
        buf: data.as_ptr(),
        len: 8192,
        offset: 4096,
        buffer: None,
        rw_flags,
    };
    rig.push(1, write(0));
    assert_eq!(rig.result(1), 8192);
    rig.push(1, write(libc::RWF_DSYNC));
    assert_eq!(rig.result(1), 8192);
    rig.push(2, Op::Fdatasync { file: file_ref });
    assert_eq!(rig.result(2), 0);
    let mode = libc::FALLOC_FL_KEEP_SIZE | libc::FALLOC_FL_PUNCH_HOLE;
    rig.push(3, Op::Fallocate { file: file_ref, mode, offset: 4096, len: 4096 });
    assert_eq!(rig.result(3), 0);
    rig.push(4, Op::Fallocate { file: file_ref, mode: 0, offset: 0, len: 1 << 16 });
    assert_eq!(rig.result(4), 0);
    assert_eq!(file.metadata().unwrap().len(), 1 << 16);
    let mut back = vec![1u8; 16384];
    let buf = back.as_mut_ptr();
    rig.push(5, Op::Read { file: file_ref, buf, len: 16384, offset: 0, buffer: None });
    assert_eq!(rig.result(5), 16384);
    assert!(back[..8192].iter().all(|b| *b == 0));
    assert!(back[8192..12288].iter().all(|b| *b == 0xa5));
    rig.push(6, Op::Read { file: file_ref, buf, len: 512, offset: 1 << 20, buffer: None });
    assert_eq!(rig.result(6), 0);
}

fn vectored_reads_and_writes_keep_their_order(rig: &mut Rig) {
    let file = tempfile::tempfile().unwrap();
    let file_ref = FileRef::Raw(file.as_raw_fd());
    let (mut a, mut b) = (*b"first ", *b"second");
    let iov = [
        libc::iovec { iov_base: a.as_mut_ptr().cast(), iov_len: 6 },
        libc::iovec { iov_base: b.as_mut_ptr().cast(), iov_len: 6 },
    ];
    let (iov, count) = (iov.as_ptr(), 2);
    rig.push(1, Op::WriteV { file: file_ref, iov, count, offset: 100, buffer: None, rw_flags: 0 });
    assert_eq!(rig.result(1), 12);
    a.fill(0);
    b.fill(0);
    rig.push(2, Op::ReadV { file: file_ref, iov, count, offset: 103, buffer: None });
    assert_eq!(rig.result(2), 9);
    assert_eq!((&a, &b), (b"st sec", b"ond\0\0\0"));
}

fn errors_of_files_are_passed_through(rig: &mut Rig) {
    let mut buf = [0u8; 8];
    let file = FileRef::Raw(1_000_000);
    rig.push(1, Op::Read { file, buf: buf.as_mut_ptr(), len: 8, offset: 0, buffer: None });
    assert_eq!(rig.result(1), -libc::EBADF);
    rig.push(2, Op::Recv { fd: 1_000_000, buf: buf.as_mut_ptr(), len: 8 });
    assert_eq!(rig.result(2), -libc::EBADF);
    rig.push(3, Op::Accept { fd: 1_000_000 });
    assert_eq!(rig.result(3), -libc::EBADF);
    let plain = tempfile::tempfile().unwrap();
    rig.push(4, Op::Recv { fd: plain.as_raw_fd(), buf: buf.as_mut_ptr(), len: 8 });
    assert_eq!(rig.result(4), -libc::ENOTSOCK);
}

fn registered_files_and_buffers_work_or_are_declined(rig: &mut Rig) {
    let features = rig.reactor.features();
    let file = tempfile::tempfile().unwrap();
    let file_ref = rig.handle.register_file(file.as_raw_fd());
    assert_eq!(matches!(file_ref, FileRef::Fixed(_)), features.registered_files);
    let mut memory = vec![0u8; 1 << 16];
    let base = memory.as_mut_ptr();
    // SAFETY: the memory outlives the registration, which ends below.
    unsafe { rig.handle.lend(base, 1 << 16, 1 << 16) };
    let index = rig.handle.fixed_buffer(base, 1 << 16);
    assert_eq!(index.is_some(), features.registered_buffers);
    assert_eq!(rig.handle.fixed_buffer(base.wrapping_add(100), 1000), index);
    assert_eq!(rig.handle.fixed_buffer(base.wrapping_add(100), 1 << 16), None);
    memory[..4096].fill(7);
    let (buf, buffer) = (base.cast_const(), index);
    rig.push(1, Op::Write { file: file_ref, buf, len: 4096, offset: 0, buffer, rw_flags: 0 });
    assert_eq!(rig.result(1), 4096);
    let buf = base.wrapping_add(8192);
    rig.push(2, Op::Read { file: file_ref, buf, len: 4096, offset: 0, buffer });
    assert_eq!(rig.result(2), 4096);
    assert!(memory[8192..12288].iter().all(|b| *b == 7));
    rig.push(3, Op::Fdatasync { file: file_ref });
    assert_eq!(rig.result(3), 0);
    // SAFETY: nothing is outstanding.
    unsafe { rig.handle.take_back(base, 1 << 16) };
    assert_eq!(rig.handle.fixed_buffer(base, 1), None);
    rig.handle.unregister_file(file_ref);
    assert_eq!(rig.handle.register_file(file.as_raw_fd()), file_ref);
}

fn lent_memory_is_registered_before_it_is_used(rig: &mut Rig) {
    let features = rig.reactor.features();
    let file = tempfile::tempfile().unwrap();
    let mut memory = vec![0u8; 3 << 14];
    let (base, len, handle) = (memory.as_mut_ptr(), memory.len(), rig.handle.clone());
    // SAFETY: the memory outlives the loan, which ends below.
    unsafe { handle.lend(base, len, 1 << 14) };
    assert!(handle.take_refusal().is_none());
    let index = |at: usize| handle.fixed_buffer(base.wrapping_add(at), 512);
    let pieces = [index(0), index(1 << 14), index(2 << 14)];
    assert!(pieces.iter().all(|piece| piece.is_some() == features.registered_buffers));
    assert!(pieces[0].is_none() || pieces[0] != pieces[1] && pieces[1] != pieces[2]);
    let buf = base.wrapping_add(1 << 14).cast_const();
    let file = FileRef::Raw(file.as_raw_fd());
    let buffer = pieces[1];
    rig.push(1, Op::Write { file, buf, len: 4096, offset: 0, buffer, rw_flags: 0 });
    assert_eq!(rig.result(1), 4096);
    // SAFETY: nothing is outstanding.
    unsafe { handle.take_back(base, len) };
    assert_eq!(index(0), None);
}

fn lent_memory_is_registered_in_pieces_until_it_is_taken_back(rig: &mut Rig) {
    let features = rig.reactor.features();
    let file = tempfile::tempfile().unwrap();
    let file_ref = FileRef::Raw(file.as_raw_fd());
    let mut memory = vec![0u8; 1 << 16];
    let (base, len) = (memory.as_mut_ptr(), memory.len());
    let handle = rig.handle.clone();
    // SAFETY: the memory outlives the loan, which ends below.
    (0..2).for_each(|_| unsafe { handle.lend(base, len, 1 << 15) });
    let index = |at: usize, len: usize| handle.fixed_buffer(base.wrapping_add(at), len);
    let first = index(100, 512);
    assert_eq!(first.is_some(), features.registered_buffers);
    assert_eq!(index(0, 1 << 15), first);
    assert_eq!(index(1 << 14, 1 << 15), None, "in two pieces");
    let second = index(1 << 15, 1 << 15);
    assert_eq!(second.is_some(), first.is_some());
    assert!(first.is_none() || first != second);
    assert!(handle.take_refusal().is_none());
    memory[..8192].fill(7);
    let piece = |at| libc::iovec { iov_base: base.wrapping_add(at).cast(), iov_len: 4096 };
    let vector = |list: &[libc::iovec]| handle.fixed_vector(list);
    let (from, into) = ([piece(0), piece(4096)], [piece(16_384), piece(24_576)]);
    assert_eq!(vector(&from), first.filter(|_| features.registered_vectors));
    assert_eq!(vector(&[piece(0), piece(1 << 15)]), None, "in two regions");
    let (iov, count, buffer) = (from.as_ptr(), 2, vector(&from));
    rig.push(1, Op::WriteV { file: file_ref, iov, count, offset: 0, buffer, rw_flags: 0 });
    assert_eq!(rig.result(1), 8192);
    let (iov, buffer) = (into.as_ptr(), vector(&into));
    let op = Op::ReadV { file: file_ref, iov, count, offset: 0, buffer };
    assert_eq!(op.is_registered(), features.registered_vectors);
    rig.push(2, op);
    assert_eq!(rig.result(2), 8192);
    for at in [16_384, 24_576] {
        assert!(memory[at..at + 4096].iter().all(|byte| *byte == 7));
    }
    // SAFETY: somebody else lends it.
    unsafe { handle.take_back(base, len) };
    assert_eq!(index(0, 1), first);
    // SAFETY: nothing is outstanding.
    unsafe { handle.take_back(base, len) };
    assert_eq!(index(0, 1), None);
}

fn a_timeout_is_never_early(rig: &mut Rig) {
    for delay_ns in [0, 1, 1_000, 300_000, 3_000_000, 20_000_000] {
        let deadline_ns = now_ns() + delay_ns;
        rig.push(1, Op::Timeout { deadline_ns });
        assert_eq!(rig.result(1), 0);
        assert!(now_ns() >= deadline_ns);
        assert!(now_ns() < deadline_ns + 5_000_000_000);
    }
}

fn a_write_to_the_wake_fd_ends_a_forever_turn(rig: &mut Rig) {
    for round in 1..=3 {
        let wake = rig.reactor.wake_fd();
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            write_eventfd(wake.as_raw_fd());
        });
        while rig.reactor.counters().wakes < round {
            assert_eq!(rig.reactor.turn(Wait::Forever).unwrap(), 0);
        }
        thread.join().unwrap();
    }
    write_eventfd(rig.reactor.wake_fd().as_raw_fd());
    rig.reactor.turn(Wait::Forever).unwrap();
}

fn cancel_ends_a_pending_receive(rig: &mut Rig) {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let mut buf = [0u8; 8];
    let recv = Op::Recv { fd: ours.as_raw_fd(), buf: buf.as_mut_ptr(), len: 8 };
    rig.push(1, recv);
    rig.settle();
    let source = rig.source;
    rig.push(2, Op::Cancel { source, user_data: 1 });
    let (recv_result, cancel_result) = rig.results(1, 2);
    assert_eq!((recv_result, cancel_result), (-libc::ECANCELED, 0));
    std::io::Write::write_all(&mut theirs, b"x").unwrap();
    rig.push(1, recv);
    assert_eq!(rig.result(1), 1);
    assert_eq!(rig.pending(), 0);
}

fn cancel_ends_a_pending_timeout(rig: &mut Rig) {
    rig.push(1, Op::Timeout { deadline_ns: now_ns() + 60_000_000_000 });
    let source = rig.source;
    rig.push(2, Op::Cancel { source, user_data: 1 });
    assert_eq!(rig.results(1, 2), (-libc::ECANCELED, 0));
}

fn cancel_of_an_unknown_operation_is_enoent(rig: &mut Rig) {
    let source = rig.source;
    rig.push(2, Op::Cancel { source, user_data: 2 });
    assert_eq!(rig.result(2), -libc::ENOENT);
}

fn release_drops_later_completions(rig: &mut Rig) {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let mut buf = [0u8; 8];
    let old = rig.handle.source();
    // SAFETY: the buffer lives to the end of the test, after the receive has completed.
    unsafe {
        let op = Op::Recv { fd: ours.as_raw_fd(), buf: buf.as_mut_ptr(), len: 8 };
        rig.handle.push(old, 9, op);
    }
    rig.settle();
    rig.handle.release(old);
    let new = rig.handle.source();
    assert_ne!(old, new);
    std::io::Write::write_all(&mut theirs, b"lost").unwrap();
    for _ in 0..5 {
        assert_eq!(rig.reactor.turn(Wait::Until(now_ns() + 10_000_000)).unwrap(), 0);
    }
    let mut done = Vec::new();
    rig.handle.take(new, &mut done);
    assert!(done.is_empty());
    assert_eq!(&buf[..4], b"lost");
    assert_eq!(rig.handle.source(), old);
}

fn a_released_accept_closes_its_connection(rig: &mut Rig) {
    let dir = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(dir.path().join("socket")).unwrap();
    let source = rig.handle.source();
    // SAFETY: an accept names no memory.
    unsafe { rig.handle.push(source, 1, Op::Accept { fd: listener.as_raw_fd() }) };
    rig.settle();
    rig.handle.release(source);
    let mut client = UnixStream::connect(dir.path().join("socket")).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    rig.settle();
    assert_eq!(std::io::Read::read(&mut client, &mut [0u8; 1]).unwrap(), 0);
}

fn ten_thousand_operations_go_through_eight_entries(rig: &mut Rig) {
    let mut rig = Rig::with_entries(rig.reactor.backend(), 8);
    for user_data in 0..10_000 {
        rig.push(user_data, Op::Nop);
    }
    assert!(rig.pending() <= 10_000);
    let mut seen = vec![false; 10_000];
    let mut count = 0;
    while count < 10_000 {
        for done in rig.next() {
            assert_eq!(done.result, 0);
            assert!(!std::mem::replace(&mut seen[done.user_data as usize], true));
            count += 1;
        }
    }
    assert_eq!(rig.pending(), 0);
    let deadline_ns = now_ns() + 20_000_000;
    for user_data in 0..1_000 {
        rig.push(user_data, Op::Timeout { deadline_ns: deadline_ns + user_data });
    }
    let mut count = 0;
    while count < 1_000 {
        count += rig.next().iter().filter(|done| done.result == 0).count();
    }
    assert!(now_ns() >= deadline_ns);
    assert_eq!(rig.pending(), 0);
}

fn a_hang_up_is_a_receive_of_zero(rig: &mut Rig) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut buf = [0u8; 8];
    rig.push(1, Op::Recv { fd: ours.as_raw_fd(), buf: buf.as_mut_ptr(), len: 8 });
    rig.settle();
    drop(theirs);
    assert_eq!(rig.result(1), 0);
}

fn a_send_to_a_closed_peer_is_epipe_and_no_signal(rig: &mut Rig) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    drop(theirs);
    // SAFETY: restoring the default action of SIGPIPE is the point of the test; a signal kills it.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    let mut data = *b"x";
    rig.push(1, Op::Send { fd: ours.as_raw_fd(), buf: data.as_ptr(), len: 1, flags: 0 });
    assert_eq!(rig.result(1), -libc::EPIPE);
    let mut iov = libc::iovec { iov_base: data.as_mut_ptr().cast(), iov_len: 1 };
    let msg = header(std::slice::from_mut(&mut iov));
    rig.push(2, Op::SendMsg { fd: ours.as_raw_fd(), msg: &raw const msg, flags: 0 });
    assert_eq!(rig.result(2), -libc::EPIPE);
}

fn turn_until_returns_on_time_with_nothing_done(rig: &mut Rig) {
    let deadline_ns = now_ns() + 30_000_000;
    let mut turns = 0;
    while now_ns() < deadline_ns {
        assert_eq!(rig.reactor.turn(Wait::Until(deadline_ns)).unwrap(), 0);
        turns += 1;
    }
    assert!(turns <= 3, "{turns} turns");
    assert!(now_ns() < deadline_ns + 5_000_000_000);
    rig.reactor.turn(Wait::Until(1)).unwrap();
}

fn an_idle_forever_turn_uses_no_cpu(rig: &mut Rig) {
    let wake = rig.reactor.wake_fd();
    let thread = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        write_eventfd(wake.as_raw_fd());
    });
    let before_ns = thread_cpu_ns();
    while rig.reactor.counters().wakes == 0 {
        rig.reactor.turn(Wait::Forever).unwrap();
    }
    let used_ns = thread_cpu_ns() - before_ns;
    thread.join().unwrap();
    assert!(used_ns < 20_000_000, "{used_ns} ns of CPU in 300 ms");
}

fn an_empty_turn_makes_no_system_call(rig: &mut Rig) {
    rig.settle();
    let before = rig.reactor.counters();
    for _ in 0..100 {
        assert_eq!(rig.reactor.turn(Wait::No).unwrap(), 0);
    }
    let after = rig.reactor.counters();
    assert_eq!(after.system_calls, before.system_calls);
    assert_eq!(after.turns, before.turns + 100);
}

fn an_eventfd_is_read_when_it_is_written(rig: &mut Rig) {
    for flags in [0, libc::EFD_NONBLOCK] {
        // SAFETY: the descriptor is new and owned by nobody else.
        let event = unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, flags)) };
        let file = FileRef::Raw(event.as_raw_fd());
        let mut value = 0u64;
        let buf = (&raw mut value).cast();
        rig.push(1, Op::Read { file, buf, len: 8, offset: 0, buffer: None });
        rig.settle();
        assert_eq!(rig.pending(), 1);
        write_eventfd(event.as_raw_fd());
        assert_eq!(rig.result(1), 8);
        assert_eq!(value, 1);
    }
}

fn poll_in_reports_readiness_once(rig: &mut Rig) {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    rig.push(1, Op::PollIn { fd: ours.as_raw_fd() });
    rig.settle();
    assert_eq!(rig.pending(), 1);
    std::io::Write::write_all(&mut theirs, b"x").unwrap();
    let events = rig.result(1);
    assert_ne!(events & i32::from(libc::POLLIN), 0);
    rig.push(1, Op::PollIn { fd: ours.as_raw_fd() });
    assert_eq!(rig.result(1), events);
}

fn ioctl_runs_on_the_pool(rig: &mut Rig) {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    std::io::Write::write_all(&mut theirs, b"abc").unwrap();
    let fd = ours.as_raw_fd();
    for user_data in 0..50 {
        rig.push(user_data, Op::Ioctl { fd, request: libc::FIONREAD, range: [0; 2] });
    }
    rig.push(99, Op::Ioctl { fd, request: 0x1277, range: [0, 4096] });
    let mut results = Vec::new();
    while results.len() < 51 {
        results.extend(rig.next());
    }
    for done in results {
        let refused = matches!(done.result, r if r == -libc::ENOTTY || r == -libc::EINVAL);
        assert!(if done.user_data == 99 { refused } else { done.result == 0 }, "{done:?}");
    }
    let source = rig.source;
    rig.push(1, Op::Ioctl { fd, request: libc::FIONREAD, range: [0; 2] });
    rig.push(2, Op::Cancel { source, user_data: 1 });
    assert_eq!(rig.results(1, 2), (-libc::ECANCELED, 0), "no thread has begun it");
}

fn close_closes(rig: &mut Rig) {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let fd = std::os::fd::IntoRawFd::into_raw_fd(ours);
    rig.push(1, Op::Close { fd });
    assert_eq!(rig.result(1), 0);
    assert_eq!(std::io::Read::read(&mut theirs, &mut [0u8; 1]).unwrap(), 0);
}

fn a_busy_poll_still_sees_wakes_and_timeouts(rig: &mut Rig) {
    let mut rig = Rig::with_spin(rig.reactor.backend(), 20_000_000);
    let deadline_ns = now_ns() + 1_000_000;
    rig.push(1, Op::Timeout { deadline_ns });
    assert_eq!(rig.result(1), 0);
    assert!(now_ns() >= deadline_ns);
    let wake = rig.reactor.wake_fd();
    let thread = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(5));
        write_eventfd(wake.as_raw_fd());
    });
    while rig.reactor.counters().wakes == 0 {
        rig.reactor.turn(Wait::Forever).unwrap();
    }
    thread.join().unwrap();
}

fn a_dropped_reactor_cancels_what_is_outstanding(rig: &mut Rig) {
    let mut rig = Rig::with_entries(rig.reactor.backend(), 16);
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let mut buf = [0u8; 8];
    rig.push(1, Op::Recv { fd: ours.as_raw_fd(), buf: buf.as_mut_ptr(), len: 8 });
    rig.push(2, Op::Timeout { deadline_ns: now_ns() + 60_000_000_000 });
    rig.settle();
    rig.push(3, Op::PollIn { fd: ours.as_raw_fd() });
    let Rig { reactor, handle, source, .. } = rig;
    let start_ns = now_ns();
    drop(reactor);
    assert!(now_ns() - start_ns < 5_000_000_000);
    assert_eq!(handle.pending(source), 0);
    // SAFETY: a no-op names no memory.
    unsafe { handle.push(source, 4, Op::Nop) };
    let mut done = Vec::new();
    handle.take(source, &mut done);
    done.sort_by_key(|done| done.user_data);
    let results: Vec<_> = done.iter().map(|done| (done.user_data, done.result)).collect();
    assert_eq!(results, [1, 2, 3, 4].map(|user_data| (user_data, -libc::ECANCELED)));
}

fn two_sources_get_their_own_completions(rig: &mut Rig) {
    let other = rig.handle.source();
    rig.push(1, Op::Nop);
    // SAFETY: a no-op names no memory.
    unsafe { rig.handle.push(other, 1 << 47, Op::Nop) };
    assert_eq!(rig.result(1), 0);
    let mut done = Vec::new();
    while done.is_empty() {
        rig.reactor.turn(Wait::Until(now_ns() + 10_000_000)).unwrap();
        rig.handle.take(other, &mut done);
    }
    assert_eq!((done.len(), done[0].user_data), (1, 1 << 47));
}
