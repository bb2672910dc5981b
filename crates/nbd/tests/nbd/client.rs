//! The client's codec: against the server's negotiation, and against servers that cannot do much.

use super::{ALL_FLAGS, STYLES, catalog, session};
use millrace_nbd::client::{ClientHandshake, ClientProgress, ClientSession};
use millrace_nbd::wire::*;
use millrace_nbd::{
    Command, Handshake, Progress, ProtocolError, ReplyStyle, Request, Session, encode_request,
    parse,
};

type Agreed = Result<(ClientSession, Session), ProtocolError>;

/// Runs both sides until they are done; returns the bytes that each sent, and the sessions agreed
/// on.
pub fn converse(name: &str, want: ReplyStyle) -> (Vec<u8>, Vec<u8>, Agreed) {
    let (catalog, mut server) = (catalog(), Handshake::new());
    let mut client = ClientHandshake::new(name, want).unwrap();
    let (mut sent, mut answered) = (Vec::new(), Vec::new());
    server.greeting(&mut answered);
    let (mut seen, mut read, mut agreed) = (0, 0, None);
    loop {
        match client.feed(&answered[read..], &mut sent) {
            Ok((bytes, ClientProgress::Ready(client))) => {
                assert_eq!(read + bytes, answered.len());
                let server = agreed.expect("the server is ready before its client");
                return (sent, answered, Ok((client, server)));
            }
            Ok((bytes, ClientProgress::NeedMore)) => read += bytes,
            Ok((_, ClientProgress::StartTls)) => panic!("nobody asked for TLS"),
            Err(error) => return (sent, answered, Err(error)),
        }
        let (bytes, progress) = server.feed(&catalog, &sent[seen..], &mut answered).unwrap();
        assert!(bytes > 0, "nobody has anything to say");
        seen += bytes;
        if let Progress::Ready(session) = progress {
            agreed = Some(session);
        }
    }
}

#[test]
fn client_and_server_agree_on_every_style() {
    for want in STYLES {
        let (_, _, agreed) = converse("disk", want);
        let (client, server) = agreed.unwrap();
        assert_eq!((client.style, server.style, server.export), (want, want, 0));
        assert_eq!((client.size_bytes, client.flags), (1 << 30, ALL_FLAGS.negotiated(want)));
        let blocks = (client.block_min, client.block_preferred, client.block_max);
        assert_eq!(blocks, (512, 4096, 1 << 25));
    }
    assert_eq!(converse("", ReplyStyle::Simple).2.unwrap().1.export, 0);
    assert_eq!(converse("ro", ReplyStyle::Structured).2.unwrap().1.export, 1);
}

#[test]
fn client_reports_why_it_was_refused() {
    let error = converse("none", ReplyStyle::Structured).2.unwrap_err();
    let names = catalog().iter().map(|export| export.name.clone()).collect();
    assert_eq!(error, ProtocolError::NoExport { name: "none".to_owned(), known: names });
    let said = "there is no export \"none\"; there are \"disk\", \"ro\"";
    assert!(error.to_string().starts_with(said), "{error}");
    assert!(ClientHandshake::new(&"a".repeat(4097), ReplyStyle::Simple).is_err());
}

#[test]
fn what_a_server_says_cannot_give_orders_to_a_terminal() {
    let mut client = ClientHandshake::new("disk", ReplyStyle::Simple).unwrap();
    let refusal = reply(OPT_GO, REP_ERR_POLICY, b"no\n\x1b[2J\xff");
    let bytes = [&b"NBDMAGICIHAVEOPT\0\x03"[..], &refusal].concat();
    let error = client.feed(&bytes, &mut Vec::new()).unwrap_err();
    let message = "no\u{fffd}\u{fffd}[2J\u{fffd}".to_owned();
    let (option, code) = (OPT_GO, REP_ERR_POLICY);
    let said =
        format!("the server refused the export: its configuration forbids it (it says: {message})");
    assert_eq!(error.to_string(), said);
    assert_eq!(error, ProtocolError::Refused { option, code, message });
}

#[test]
fn server_that_lists_nothing_still_has_no_such_export() {
    let mut client = ClientHandshake::new("disk", ReplyStyle::Simple).unwrap();
    let unknown = reply(OPT_GO, REP_ERR_UNKNOWN, b"");
    let bytes = [&b"NBDMAGICIHAVEOPT\0\x03"[..], &unknown].concat();
    assert!(client.refusal().is_none());
    let progress = client.feed(&bytes, &mut Vec::new());
    assert_eq!(progress, Ok((bytes.len(), ClientProgress::NeedMore)));
    let error = client.refusal().unwrap();
    let said = "there is no export \"disk\"; the server does not list its exports";
    assert_eq!(error.to_string(), said);
    let refused = client.feed(&reply(OPT_LIST, REP_ERR_POLICY, b"no"), &mut Vec::new());
    assert_eq!(refused, Err(error));
    // However many it lists, there is an end.
    let mut item = 3u32.to_be_bytes().to_vec();
    item.extend_from_slice(b"a\nb");
    let many: Vec<u8> = (0..99).flat_map(|_| reply(OPT_LIST, REP_SERVER, &item)).collect();
    let Err(ProtocolError::NoExport { known, .. }) = client.feed(&many, &mut Vec::new()) else {
        panic!("it never ends")
    };
    assert!(known.len() < 99 && known[0] == "a\u{fffd}b", "{known:?}");
}

fn reply(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = OPTION_REPLY_MAGIC.to_be_bytes().to_vec();
    for number in [option, kind, data.len() as u32] {
        bytes.extend_from_slice(&number.to_be_bytes());
    }
    bytes.extend_from_slice(data);
    bytes
}

#[test]
fn client_falls_back_to_export_name_with_an_old_server() {
    let mut client = ClientHandshake::new("disk", ReplyStyle::Extended).unwrap();
    let mut out = Vec::new();
    let mut old = b"NBDMAGICIHAVEOPT\0\x01".to_vec();
    for option in [OPT_EXTENDED_HEADERS, OPT_STRUCTURED_REPLY, OPT_GO] {
        old.extend(reply(option, REP_ERR_UNSUP, b"no"));
    }
    old.extend_from_slice(&[0, 0, 0, 0, 0, 1, 0, 0, 0, 3]);
    old.extend_from_slice(&[0; 124]);
    for at in 0..old.len() {
        let progress = client.feed(&old[at..at], &mut out);
        assert_eq!(progress, Ok((0, ClientProgress::NeedMore)));
    }
    let (used, progress) = client.feed(&old, &mut out).unwrap();
    assert_eq!(used, old.len());
    let ClientProgress::Ready(session) = progress else { panic!("{progress:?}") };
    assert_eq!((session.size_bytes, session.flags.bits(), session.block_min), (65536, 3, 512));
    assert_eq!(&out[..4], [0, 0, 0, 1]);
    assert!(out.ends_with(b"IHAVEOPT\0\0\0\x01\0\0\0\x04disk"));
}

#[test]
fn client_refuses_servers_that_break_the_protocol() {
    let end = |bytes: &[u8]| {
        let mut client = ClientHandshake::new("", ReplyStyle::Simple).unwrap();
        client.feed(bytes, &mut Vec::new()).unwrap_err()
    };
    let greeting = b"NBDMAGICIHAVEOPT\0\x03".to_vec();
    assert!(matches!(end(b"NBDMAGIC\0\0\x42\x02\x81\x86\x12\x53"), ProtocolError::BadMagic { .. }));
    assert_eq!(end(b"NBDMAGICIHAVEOPT\0\0"), ProtocolError::NotFixedNewstyle(0));
    let wrong = [greeting.clone(), reply(OPT_LIST, REP_ACK, &[])].concat();
    assert_eq!(end(&wrong), ProtocolError::WrongOption { found: OPT_LIST, expected: OPT_GO });
    let early = [greeting.clone(), reply(OPT_GO, REP_ACK, &[])].concat();
    assert!(matches!(end(&early), ProtocolError::BadField { value: 1, .. }));
    let short = [greeting.clone(), reply(OPT_GO, REP_INFO, &[0, 0, 1])].concat();
    assert!(matches!(end(&short), ProtocolError::BadField { value: 3, .. }));
    let blocks = [greeting, reply(OPT_GO, REP_INFO, &[0, 3, 0, 0, 0, 3, 0, 0, 2, 0, 0, 0, 0, 0])];
    assert!(matches!(end(&blocks.concat()), ProtocolError::BadField { value: 3, .. }));
}

#[test]
fn requests_survive_the_wire() {
    for style in STYLES {
        for number in 0..9 {
            let command = Command::from_wire(number);
            let length = if style == ReplyStyle::Extended { 1 << 40 } else { 4096 };
            let sent = Request { cookie: 3, flags: 1, command, offset: 1 << 50, length };
            let mut bytes = [0; 32];
            let len = encode_request(&sent, style, &mut bytes);
            let payload = style == ReplyStyle::Extended && command == Command::Write;
            let flags = if payload { 1 | CMD_FLAG_PAYLOAD_LEN } else { 1 };
            let request = Request { flags, ..sent };
            let expected = Some((request, len));
            assert_eq!(parse(&bytes[..len], &session(style)), Ok(expected));
        }
    }
}
