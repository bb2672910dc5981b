//! A client's treatment of a server's answers: valid ones, and those that break the protocol.

use millrace_nbd::client::{
    Answer, AnswerError, Answers, ClientHandshake, ClientProgress, Payload,
};
use millrace_nbd::wire::*;
use millrace_nbd::{
    Command, Errno, Handshake, Progress, ProtocolError, ReplyStyle, Request, TransmissionFlags,
};

use super::{STYLES, catalog};

const READ: (Command, u64, u64) = (Command::Read, 4096, 1024);

/// Answers with these requests in flight, under the indices 0, 1, ..., and their cookies.
fn expecting(style: ReplyStyle, requests: &[(Command, u64, u64)]) -> (Answers, Vec<u64>) {
    let mut answers = Answers::new(style, 4);
    let expect = |(index, &(command, offset, length)): (usize, &(Command, u64, u64))| {
        let mut request = Request { cookie: 0, flags: 0, command, offset, length };
        answers.expect(index as u32, &mut request);
        request.cookie
    };
    let cookies = requests.iter().enumerate().map(expect).collect();
    (answers, cookies)
}

fn simple(cookie: u64, errno: u32) -> Vec<u8> {
    let mut bytes = SIMPLE_REPLY_MAGIC.to_be_bytes().to_vec();
    bytes.extend(errno.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes
}

fn chunk(cookie: u64, (kind, flags): (u16, u16), data: &[u8]) -> Vec<u8> {
    let mut bytes = STRUCTURED_REPLY_MAGIC.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
}

fn data(cookie: u64, offset: u64, length: usize) -> Vec<u8> {
    let mut payload = offset.to_be_bytes().to_vec();
    payload.resize(8 + length, 7);
    chunk(cookie, (REPLY_TYPE_OFFSET_DATA, 0), &payload)
}

fn hole(cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let payload = [&offset.to_be_bytes()[..], &length.to_be_bytes()].concat();
    chunk(cookie, (REPLY_TYPE_OFFSET_HOLE, 0), &payload)
}

fn done(cookie: u64) -> Vec<u8> {
    chunk(cookie, (REPLY_TYPE_NONE, REPLY_FLAG_DONE), &[])
}

/// Parses a whole stream into its answers, with payload in the pieces that come.
fn play(answers: &mut Answers, input: &[u8]) -> Result<Vec<Answer>, AnswerError> {
    let (mut at, mut all) = (0, Vec::new());
    loop {
        let (used, answer) = answers.next(&input[at..])?;
        at += used;
        match answer {
            Answer::NeedMore => return Ok(all),
            Answer::Payload => {
                let Payload { left, .. } = answers.payload().unwrap();
                let taken = left.min((input.len() - at) as u64);
                if taken == 0 {
                    return Ok(all);
                }
                answers.took(taken);
                at += taken as usize;
            }
            answer => all.push(answer),
        }
    }
}

#[test]
fn a_read_in_parts_ends_when_all_have_come_in_whatever_order() {
    let (mut answers, cookies) = expecting(ReplyStyle::Structured, &[READ]);
    let parts = [data(cookies[0], 4608, 512), hole(cookies[0], 4096, 512), done(cookies[0])];
    let zeroes = Answer::Zeroes { index: 0, at: 0, length: 512 };
    let ended = Answer::Ended { index: 0, errno: None };
    assert_eq!(play(&mut answers, &parts.concat()), Ok(vec![zeroes, ended]));
    assert_eq!(answers.in_flight(), 0);
}

#[test]
fn replies_without_chunks_end_requests_and_carry_data_of_reads() {
    let write = (Command::Write, 0, 512);
    let (mut answers, cookies) = expecting(ReplyStyle::Simple, &[READ, write, write]);
    let mut input = simple(cookies[2], 28);
    input.extend(simple(cookies[0], 0));
    input.extend([7; 1024]);
    input.extend(simple(cookies[1], 0));
    let ends = [(2, Some(Errno::Enospc)), (0, None), (1, None)];
    let ends = ends.map(|(index, errno)| Answer::Ended { index, errno });
    assert_eq!(play(&mut answers, &input), Ok(ends.to_vec()));
}

#[test]
fn an_error_chunk_fails_the_request_though_data_follow() {
    let (mut answers, cookies) = expecting(ReplyStyle::Structured, &[READ]);
    let error = [&5u32.to_be_bytes()[..], &0u16.to_be_bytes()].concat();
    let error = chunk(cookies[0], (REPLY_TYPE_ERROR, 0), &error);
    let input = [error, data(cookies[0], 4096, 512), done(cookies[0])].concat();
    let ended = Answer::Ended { index: 0, errno: Some(Errno::Eio) };
    assert_eq!(play(&mut answers, &input), Ok(vec![Answer::Nothing, ended]));
}

#[test]
fn servers_that_lie_about_reads_are_found_out() {
    /// Bytes for the request of a cookie.
    type Lie = fn(u64) -> Vec<u8>;
    let structured = ReplyStyle::Structured;
    let lies: [(Lie, AnswerError); 8] = [
        (
            |cookie| [data(cookie, 4096, 512), done(cookie)].concat(),
            AnswerError::Short { asked: 1024, got: 512 },
        ),
        (
            |cookie| [data(cookie, 4096, 512), data(cookie, 4600, 512)].concat(),
            AnswerError::Twice { offset: 4600, length: 512 },
        ),
        (|cookie| data(cookie, 4608, 1024), AnswerError::Outside { offset: 4608, length: 1024 }),
        (|cookie| data(cookie, 0, 512), AnswerError::Outside { offset: 0, length: 512 }),
        (
            |cookie| hole(cookie, u64::MAX, u32::MAX),
            AnswerError::Outside { offset: u64::MAX, length: u32::MAX.into() },
        ),
        (|cookie| simple(cookie, 0), AnswerError::NotStructured),
        (|cookie| done(cookie + 1), AnswerError::UnknownCookie(1 << 32 | 1)),
        (|cookie| chunk(cookie, (REPLY_TYPE_BLOCK_STATUS, 1), &[0; 12]), AnswerError::Status),
    ];
    for (lie, error) in lies {
        let (mut answers, cookies) = expecting(structured, &[READ]);
        assert_eq!(play(&mut answers, &lie(cookies[0])), Err(error));
    }
}

#[test]
fn second_reply_and_one_to_an_old_user_belong_to_nobody() {
    let (mut answers, cookies) = expecting(ReplyStyle::Simple, &[(Command::Flush, 0, 0)]);
    play(&mut answers, &simple(cookies[0], 0)).unwrap();
    let unknown = Err(AnswerError::UnknownCookie(cookies[0]));
    assert_eq!(play(&mut answers, &simple(cookies[0], 0)), unknown);
    let mut next = Request { cookie: 0, flags: 0, command: Command::Flush, offset: 0, length: 0 };
    answers.expect(0, &mut next);
    assert_ne!(next.cookie, cookies[0]);
    assert_eq!(play(&mut answers, &simple(cookies[0], 0)), unknown);
}

#[test]
fn data_for_a_write_and_a_scattered_read_are_refused() {
    let write = (Command::Write, 4096, 1024);
    let (mut answers, cookies) = expecting(ReplyStyle::Structured, &[write]);
    let outside = AnswerError::Outside { offset: 4096, length: 1024 };
    assert_eq!(play(&mut answers, &data(cookies[0], 4096, 1024)), Err(outside));
    let (mut answers, cookies) = expecting(ReplyStyle::Structured, &[READ]);
    let input: Vec<u8> = (0..9).flat_map(|n| hole(cookies[0], 4096 + n * 16, 8)).collect();
    assert_eq!(play(&mut answers, &input), Err(AnswerError::Scattered));
}

/// A conversation of a client with this crate's server; how it ended for each.
fn converse(mut client: ClientHandshake) -> (ClientProgress, Option<Progress>) {
    let (catalog, mut server) = (catalog(), Handshake::new());
    let (mut sent, mut answered) = (Vec::new(), Vec::new());
    server.greeting(&mut answered);
    let (mut seen, mut read, mut agreed) = (0, 0, None);
    loop {
        let (bytes, progress) = client.feed(&answered[read..], &mut sent).unwrap();
        read += bytes;
        if agreed.is_none() {
            let (bytes, progress) = server.feed(&catalog, &sent[seen..], &mut answered).unwrap();
            seen += bytes;
            agreed = (progress != Progress::NeedMore).then_some(progress);
        }
        if progress != ClientProgress::NeedMore {
            return (progress, agreed);
        }
    }
}

#[test]
fn client_that_asks_for_allocation_gets_an_id_with_chunks() {
    for style in STYLES {
        let client = ClientHandshake::new("disk", style).unwrap().with_allocation();
        let (ClientProgress::Ready(client), Some(Progress::Ready(server))) = converse(client)
        else {
            panic!("no agreement on {style:?}");
        };
        assert_eq!(client.allocation, server.base_allocation);
        assert_eq!(client.allocation.is_some(), style != ReplyStyle::Simple);
    }
}

#[test]
fn a_client_that_only_asks_learns_the_size_and_takes_leave() {
    let client = ClientHandshake::new("ro", ReplyStyle::Structured).unwrap().only_asking();
    let (ClientProgress::Ready(told), server) = converse(client) else { panic!("not told") };
    assert_eq!(told.size_bytes, 1 << 30);
    assert!(told.flags.contains(TransmissionFlags::READ_ONLY));
    assert!(!matches!(server, Some(Progress::Ready(_))), "{server:?}");
}

#[test]
fn names_are_listed_only_for_an_export_that_is_missing() {
    let (catalog, mut server) = (catalog(), Handshake::new());
    let mut client = ClientHandshake::new("no", ReplyStyle::Simple).unwrap().only_asking();
    let (mut sent, mut answered) = (Vec::new(), Vec::new());
    server.greeting(&mut answered);
    let (read, _) = client.feed(&answered, &mut sent).unwrap();
    let (seen, _) = server.feed(&catalog, &sent, &mut answered).unwrap();
    let (more, _) = client.feed(&answered[read..], &mut sent).unwrap();
    server.feed(&catalog, &sent[seen..], &mut answered).unwrap();
    let error = client.feed(&answered[read + more..], &mut sent).unwrap_err();
    assert!(matches!(error, ProtocolError::NoExport { .. }), "{error}");
}

/// A client that wants TLS, after the greeting; and its reaction to an answer to its request.
fn answered_tls(answer: &[u8]) -> (ClientHandshake, Result<ClientProgress, ProtocolError>) {
    let mut client = ClientHandshake::new("disk", ReplyStyle::Structured).unwrap().with_tls();
    let (mut input, mut sent) = (Vec::new(), Vec::new());
    Handshake::new().greeting(&mut input);
    let (used, _) = client.feed(&input, &mut sent).unwrap();
    assert_eq!(sent[4..], [&OPTION_MAGIC.to_be_bytes()[..], &[0, 0, 0, 5, 0, 0, 0, 0]].concat());
    input.drain(..used);
    input.extend_from_slice(answer);
    let progress = client.feed(&input, &mut sent).map(|(_, progress)| progress);
    (client, progress)
}

fn option_reply(option: u32, kind: u32) -> Vec<u8> {
    let mut bytes = OPTION_REPLY_MAGIC.to_be_bytes().to_vec();
    [option, kind, 0].iter().for_each(|field| bytes.extend(field.to_be_bytes()));
    bytes
}

#[test]
fn a_client_that_wants_tls_says_nothing_more_until_it_has_begun() {
    let (mut client, progress) = answered_tls(&option_reply(OPT_STARTTLS, REP_ACK));
    assert_eq!(progress, Ok(ClientProgress::StartTls));
    let mut sent = Vec::new();
    client.secured(&mut sent);
    assert_eq!(sent[8..12], OPT_STRUCTURED_REPLY.to_be_bytes());
}

#[test]
fn a_server_without_tls_and_bytes_before_it_begins_are_errors() {
    let (_, refused) = answered_tls(&option_reply(OPT_STARTTLS, REP_ERR_UNSUP));
    let refused = refused.unwrap_err().to_string();
    assert_eq!(refused, "the server refused TLS: the server does not know the option");
    let early = [option_reply(OPT_STARTTLS, REP_ACK), vec![0; 3]].concat();
    let what = "number of bytes that the server sent before TLS started";
    assert_eq!(answered_tls(&early).1, Err(ProtocolError::BadField { what, value: 3 }));
}
