//! Exact answers of the server's negotiation to each option, valid and not.

use super::{
    ALL_FLAGS, answers, context_data, disk, feed_whole, info_data, negotiate, play, stream,
};
use millrace_nbd::handshake::{
    BASE_ALLOCATION_ID, OPTION_BYTES_MAX, OPTION_SKIP_BYTES_MAX, OPTIONS_MAX, OPTIONS_PER_EXPORT,
};
use millrace_nbd::wire::*;
use millrace_nbd::{
    Handshake, Progress, ProtocolError, ReplyStyle, Session, TlsMode, TransmissionFlags,
};

fn ready(end: Result<Progress, ProtocolError>) -> Session {
    match end {
        Ok(Progress::Ready(session)) => session,
        other => panic!("not ready: {other:?}"),
    }
}

/// The type of the last answer to the options.
fn last_kind(options: &[(u32, Vec<u8>)]) -> u32 {
    let (out, end) = negotiate(options);
    assert_eq!(end, Ok(Progress::NeedMore));
    answers(&out).last().unwrap().1
}

#[test]
fn greeting_is_the_18_bytes_of_fixed_newstyle() {
    let mut out = Vec::new();
    Handshake::new().greeting(&mut out);
    assert_eq!(out, b"NBDMAGICIHAVEOPT\0\x03");
}

#[test]
fn unknown_client_flags_close_the_connection() {
    let (_, _, end) = play(&[0, 0, 0, 7], &[]);
    assert_eq!(end, Err(ProtocolError::ClientFlags(7)));
}

#[test]
fn without_fixed_newstyle_only_export_name_is_allowed() {
    let mut bytes = vec![0, 0, 0, 0];
    put_option(&mut bytes, OPT_LIST, &[]);
    let (_, _, end) = play(&bytes, &[]);
    assert_eq!(end, Err(ProtocolError::OptionWithoutFixedNewstyle(OPT_LIST)));
    let mut bytes = vec![0, 0, 0, 0];
    put_option(&mut bytes, OPT_EXPORT_NAME, b"disk");
    let (out, used, end) = play(&bytes, &[]);
    assert_eq!((out.len(), used), (8 + 2 + 124, bytes.len()));
    assert!(!ready(end).no_zeroes);
}

#[test]
fn export_name_answers_size_and_flags_without_zeroes() {
    let (out, end) = negotiate(&[(OPT_EXPORT_NAME, b"disk".to_vec())]);
    let session = ready(end);
    assert_eq!((session.export, session.no_zeroes, session.style), (0, true, ReplyStyle::Simple));
    // DF (bit 7) is hidden from a client without structured replies.
    assert_eq!(out, [0, 0, 0, 0, 0x40, 0, 0, 0, 0x0d, 0x6d]);
    assert_eq!(ALL_FLAGS.bits(), 0x0ded);
}

#[test]
fn export_name_that_cannot_be_granted_closes() {
    let why = |name: &[u8]| match negotiate(&[(OPT_EXPORT_NAME, name.to_vec())]).1 {
        Err(ProtocolError::ExportName(why)) => why,
        other => panic!("{other:?}"),
    };
    assert_eq!(why(b"none"), "no such export");
    assert_eq!(why(b"di\0k"), "the name is not UTF-8, or contains a NUL");
    assert_eq!(why(&[b'a'; 4097]), "the name is longer than 4096 bytes");
    assert_eq!(why(&[b'a'; 70_000]), "the name is longer than 4096 bytes");
    let extended = [(OPT_EXTENDED_HEADERS, vec![]), (OPT_EXPORT_NAME, vec![])];
    let why = "extended headers need OPT_GO";
    assert_eq!(negotiate(&extended).1, Err(ProtocolError::ExportName(why)));
}

#[test]
fn abort_is_acknowledged_even_with_data_and_ends_the_session() {
    let (out, end) = negotiate(&[(OPT_ABORT, vec![1, 2, 3]), (OPT_LIST, vec![])]);
    assert_eq!(end, Ok(Progress::Closed));
    let expected = [0, 3, 0xe8, 0x89, 4, 0x55, 0x65, 0xa9, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0];
    assert_eq!(out, expected);
}

#[test]
fn list_names_every_export_and_refuses_data() {
    let (out, _) = negotiate(&[(OPT_LIST, vec![])]);
    let expected = vec![
        (OPT_LIST, REP_SERVER, b"\0\0\0\x04diska disk".to_vec()),
        (OPT_LIST, REP_SERVER, b"\0\0\0\x02ro".to_vec()),
        (OPT_LIST, REP_ACK, vec![]),
    ];
    assert_eq!(answers(&out), expected);
    assert_eq!(last_kind(&[(OPT_LIST, vec![0])]), REP_ERR_INVALID);
}

#[test]
fn info_sends_export_and_block_size_always_and_texts_on_request() {
    let export = [&[0, 0][..], &(1u64 << 30).to_be_bytes(), &[0x0d, 0x6d]].concat();
    let block = b"\0\x03\0\0\x02\0\0\0\x10\0\x02\0\0\0".to_vec();
    let (out, _) = negotiate(&[(OPT_INFO, info_data("", &[]))]);
    let short = vec![
        (OPT_INFO, REP_INFO, export.clone()),
        (OPT_INFO, REP_INFO, block.clone()),
        (OPT_INFO, REP_ACK, vec![]),
    ];
    assert_eq!(answers(&out), short);
    let wanted = [INFO_DESCRIPTION, INFO_NAME, INFO_NAME, 99];
    let (out, _) = negotiate(&[(OPT_INFO, info_data("disk", &wanted))]);
    let long = vec![
        (OPT_INFO, REP_INFO, export),
        (OPT_INFO, REP_INFO, block),
        (OPT_INFO, REP_INFO, b"\0\x01disk".to_vec()),
        (OPT_INFO, REP_INFO, b"\0\x02a disk".to_vec()),
        (OPT_INFO, REP_ACK, vec![]),
    ];
    assert_eq!(answers(&out), long);
}

#[test]
fn info_and_go_refuse_unknown_exports_and_bad_lengths() {
    for option in [OPT_INFO, OPT_GO] {
        assert_eq!(last_kind(&[(option, info_data("none", &[]))]), REP_ERR_UNKNOWN);
        assert_eq!(last_kind(&[(option, vec![])]), REP_ERR_INVALID);
        assert_eq!(last_kind(&[(option, vec![0xff; 6])]), REP_ERR_INVALID);
        assert_eq!(last_kind(&[(option, vec![0, 0, 0, 0, 0, 1])]), REP_ERR_INVALID);
        assert_eq!(last_kind(&[(option, vec![0, 0, 0, 0, 0, 0, 0])]), REP_ERR_INVALID);
        let long = "a".repeat(4097);
        assert_eq!(last_kind(&[(option, info_data(&long, &[]))]), REP_ERR_INVALID);
    }
}

#[test]
fn go_is_ready_and_leaves_the_first_request_alone() {
    let mut bytes = stream(&[(OPT_STRUCTURED_REPLY, vec![]), (OPT_GO, info_data("ro", &[]))]);
    let all = bytes.len();
    bytes.extend_from_slice(&REQUEST_MAGIC.to_be_bytes());
    let (_, used, end) = play(&bytes, &[]);
    let session = ready(end);
    assert_eq!((used, session.export, session.style), (all, 1, ReplyStyle::Structured));
}

#[test]
fn structured_replies_show_df_and_are_negotiated_once() {
    let options = [(OPT_STRUCTURED_REPLY, vec![]), (OPT_EXPORT_NAME, vec![])];
    let (out, end) = negotiate(&options);
    assert_eq!(ready(end).style, ReplyStyle::Structured);
    assert!(out.ends_with(&[0x0d, 0xed]));
    let once = (OPT_STRUCTURED_REPLY, vec![]);
    assert_eq!(last_kind(std::slice::from_ref(&once)), REP_ACK);
    assert_eq!(last_kind(&[once.clone(), once]), REP_ERR_INVALID);
    assert_eq!(last_kind(&[(OPT_STRUCTURED_REPLY, vec![0])]), REP_ERR_INVALID);
}

#[test]
fn extended_headers_win_over_structured_replies() {
    let (extended, structured) = ((OPT_EXTENDED_HEADERS, vec![]), (OPT_STRUCTURED_REPLY, vec![]));
    assert_eq!(last_kind(&[structured.clone(), extended.clone()]), REP_ACK);
    assert_eq!(last_kind(&[extended.clone(), structured]), REP_ERR_EXT_HEADER_REQD);
    assert_eq!(last_kind(&[extended.clone(), extended.clone()]), REP_ERR_INVALID);
    assert_eq!(last_kind(&[(OPT_EXTENDED_HEADERS, vec![0])]), REP_ERR_INVALID);
    let go = (OPT_GO, info_data("", &[]));
    assert_eq!(ready(negotiate(&[extended, go]).1).style, ReplyStyle::Extended);
}

#[test]
fn starttls_and_unknown_options_are_unsupported() {
    assert_eq!(last_kind(&[(OPT_STARTTLS, vec![])]), REP_ERR_UNSUP);
    assert_eq!(last_kind(&[(OPT_STARTTLS, vec![0])]), REP_ERR_INVALID);
    assert_eq!(last_kind(&[(4, vec![])]), REP_ERR_UNSUP);
    assert_eq!(last_kind(&[(0xdead_beef, vec![1, 2])]), REP_ERR_UNSUP);
}

#[test]
fn list_meta_context_knows_the_wildcard_and_the_name() {
    let structured = (OPT_STRUCTURED_REPLY, vec![]);
    let list = |queries: &[&str]| {
        let list = (OPT_LIST_META_CONTEXT, context_data("disk", queries));
        answers(&negotiate(&[structured.clone(), list]).0).split_off(1)
    };
    let found = (OPT_LIST_META_CONTEXT, REP_META_CONTEXT, b"\0\0\0\0base:allocation".to_vec());
    let ack = (OPT_LIST_META_CONTEXT, REP_ACK, vec![]);
    for queries in [&[][..], &["base:"], &["base:allocation"], &["x-a:b", "base:", "base:"]] {
        assert_eq!(list(queries), [found.clone(), ack.clone()], "{queries:?}");
    }
    for queries in [&["x-a:"][..], &["base:other"], &["base"], &[""]] {
        assert_eq!(list(queries), std::slice::from_ref(&ack), "{queries:?}");
    }
}

#[test]
fn contexts_need_structured_replies_exports_and_valid_lengths() {
    let structured = (OPT_STRUCTURED_REPLY, vec![]);
    for option in [OPT_LIST_META_CONTEXT, OPT_SET_META_CONTEXT] {
        let good = (option, context_data("disk", &["base:allocation"]));
        assert_eq!(last_kind(&[good]), REP_ERR_INVALID);
        let mut cut = context_data("disk", &["base:allocation"]);
        cut.pop();
        let mut more = context_data("disk", &["base:allocation"]);
        more.push(0);
        for data in [cut, more, vec![], context_data("disk", &["a\0"])] {
            assert_eq!(last_kind(&[structured.clone(), (option, data)]), REP_ERR_INVALID);
        }
        let unknown = (option, context_data("none", &[]));
        assert_eq!(last_kind(&[structured.clone(), unknown]), REP_ERR_UNKNOWN);
    }
}

/// Id of `base:allocation` after these SET_META_CONTEXT options and a GO for `disk`.
fn selected(sets: &[(&str, &[&str])]) -> Option<u32> {
    let mut options = vec![(OPT_STRUCTURED_REPLY, vec![])];
    for (name, queries) in sets {
        options.push((OPT_SET_META_CONTEXT, context_data(name, queries)));
    }
    options.push((OPT_GO, info_data("disk", &[])));
    ready(negotiate(&options).1).base_allocation
}

#[test]
fn set_meta_context_selects_per_export_and_replaces() {
    let exact: &[&str] = &["base:allocation"];
    assert_eq!(selected(&[("disk", exact)]), Some(BASE_ALLOCATION_ID));
    assert_eq!(selected(&[("", exact)]), Some(BASE_ALLOCATION_ID));
    assert_eq!(selected(&[("ro", exact)]), None);
    assert_eq!(selected(&[("disk", &["base:"])]), None);
    assert_eq!(selected(&[("disk", exact), ("disk", &[])]), None);
    assert_eq!(selected(&[("disk", exact), ("ro", exact)]), None);
    assert_eq!(selected(&[("disk", exact), ("none", exact)]), None);
    assert_eq!(selected(&[("ro", exact), ("disk", exact)]), Some(BASE_ALLOCATION_ID));
}

#[test]
fn long_options_are_skipped_and_absurd_ones_close() {
    let long = (OPT_LIST, vec![7; OPTION_BYTES_MAX as usize + 1]);
    let (out, end) = negotiate(&[long, (OPT_LIST, vec![])]);
    assert_eq!(end, Ok(Progress::NeedMore));
    let kinds: Vec<u32> = answers(&out).iter().map(|answer| answer.1).collect();
    assert_eq!(kinds, [REP_ERR_TOO_BIG, REP_SERVER, REP_SERVER, REP_ACK]);
    let mut bytes = vec![0, 0, 0, 1];
    bytes.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
    bytes.extend_from_slice(&[0, 0, 0, 3, 0, 0x10, 0, 1]);
    let (option, length, max) = (OPT_LIST, OPTION_SKIP_BYTES_MAX + 1, OPTION_SKIP_BYTES_MAX);
    let expected = ProtocolError::OptionTooLong { option, length, max };
    assert_eq!(play(&bytes, &[]).2, Err(expected));
}

#[test]
fn options_and_answers_are_bounded() {
    let max = OPTIONS_MAX + 2 * OPTIONS_PER_EXPORT;
    let options = vec![(OPT_STARTTLS, vec![]); max as usize + 1];
    let end = negotiate(&options).1;
    assert_eq!(end, Err(ProtocolError::TooManyOptions(max)));
    let text = "x".repeat(4096);
    let exports: Vec<_> = (0..900)
        .map(|n| super::ExportInfo { name: n.to_string(), description: text.clone(), ..disk() })
        .collect();
    let (mut handshake, mut out) = (Handshake::new(), Vec::new());
    let options = stream(&vec![(OPT_LIST, vec![]); 4]);
    let (_, end) = feed_whole(&mut handshake, &exports, &options, &mut out);
    assert!(matches!(end, Err(ProtocolError::TooManyReplyBytes(_))), "{end:?}");
    assert_eq!(handshake.feed(&exports, &options, &mut out), Ok((0, Progress::Closed)));
}

/// `nbdinfo --list` sends this: the list option, then two options for each export.
#[test]
fn a_server_of_many_exports_is_listed_whole() {
    let exports: Vec<_> = (0..10_000)
        .map(|n| super::ExportInfo { name: n.to_string(), description: "x".repeat(300), ..disk() })
        .collect();
    let info = |n: usize| (OPT_INFO, info_data(&n.to_string(), &[INFO_DESCRIPTION]));
    let contexts = |n: usize| (OPT_LIST_META_CONTEXT, context_data(&n.to_string(), &[]));
    let each = (0..exports.len()).flat_map(|n| [contexts(n), info(n)]);
    let options = [(OPT_STRUCTURED_REPLY, vec![]), (OPT_LIST, vec![])].into_iter().chain(each);
    let (mut handshake, mut out) = (Handshake::new(), Vec::new());
    let options = stream(&options.collect::<Vec<_>>());
    let (_, end) = feed_whole(&mut handshake, &exports, &options, &mut out);
    assert_eq!(end, Ok(Progress::NeedMore));
    let last = answers(&out).pop().map(|answer| (answer.0, answer.1));
    assert_eq!(last, Some((OPT_INFO, REP_ACK)));
}

#[test]
fn bad_option_magic_closes() {
    let (found, expected) = (0x0102_0304_0506_0708, OPTION_MAGIC);
    let end = play(&[0, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8], &[]).2;
    assert_eq!(end, Err(ProtocolError::BadMagic { what: "an option", found, expected }));
}

#[test]
fn export_info_is_held_to_the_bounds_of_the_specification() {
    assert_eq!(disk().validate(), Ok(()));
    let what = |change: fn(&mut super::ExportInfo)| {
        let mut export = disk();
        change(&mut export);
        match export.validate() {
            Err(ProtocolError::BadField { what, .. }) => what,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(what(|e| e.block_min = 0), "minimum block size");
    assert_eq!(what(|e| e.block_min = 131_072), "minimum block size");
    assert_eq!(what(|e| e.block_preferred = 256), "preferred block size");
    assert_eq!(what(|e| e.block_max = 1000), "maximum block size");
    assert_eq!(what(|e| e.block_max = 0), "maximum block size");
    assert_eq!(what(|e| e.name = "a\0".to_owned()), "export name");
    assert_eq!(TransmissionFlags::FAST_ZERO.negotiated(super::ReplyStyle::Simple).bits(), 1);
}

/// Plays options to a server that does this about TLS.
fn with_tls(
    mode: TlsMode,
    options: &[(u32, Vec<u8>)],
) -> (Handshake, Vec<u8>, Result<Progress, ProtocolError>) {
    let (mut handshake, mut out) = (Handshake::with_tls(mode), Vec::new());
    let end = handshake.feed(&super::catalog(), &stream(options), &mut out);
    (handshake, out, end.map(|(_, progress)| progress))
}

#[test]
fn without_tls_a_server_that_requires_it_answers_nothing_else() {
    let long = vec![0; OPTION_BYTES_MAX as usize + 1];
    for option in [OPT_LIST, OPT_INFO, OPT_GO, OPT_STRUCTURED_REPLY, OPT_EXTENDED_HEADERS, 77] {
        for data in [vec![], long.clone()] {
            let (_, out, end) = with_tls(TlsMode::Required, &[(option, data)]);
            assert_eq!(end, Ok(Progress::NeedMore));
            let text = b"this server requires TLS".to_vec();
            assert_eq!(answers(&out), [(option, REP_ERR_TLS_REQD, text)]);
        }
    }
    let (_, out, end) = with_tls(TlsMode::Required, &[(OPT_EXPORT_NAME, b"disk".to_vec())]);
    let why = "this server requires TLS, but the client requested an export without it";
    assert_eq!((out, end), (vec![], Err(ProtocolError::ExportName(why))));
    let (_, _, end) = with_tls(TlsMode::Required, &[(OPT_ABORT, vec![])]);
    assert_eq!(end, Ok(Progress::Closed));
    let (_, out, _) = with_tls(TlsMode::Offered, &[(OPT_LIST, vec![])]);
    assert_eq!(answers(&out).len(), 3);
}

#[test]
fn tls_forgets_what_was_negotiated_before() {
    let before = [
        (OPT_STRUCTURED_REPLY, vec![]),
        (OPT_SET_META_CONTEXT, context_data("disk", &["base:allocation"])),
        (OPT_INFO, info_data("disk", &[INFO_BLOCK_SIZE])),
        (OPT_STARTTLS, vec![]),
    ];
    for (mode, options) in [(TlsMode::Offered, &before[..]), (TlsMode::Required, &before[3..])] {
        let (mut handshake, mut out, end) = with_tls(mode, options);
        assert_eq!(end, Ok(Progress::StartTls));
        assert_eq!(answers(&out).last().unwrap(), &(OPT_STARTTLS, REP_ACK, vec![]));
        let catalog = super::catalog();
        let again = handshake.feed(&catalog, &[], &mut out);
        assert_eq!(again, Ok((0, Progress::StartTls)));
        handshake.secured();
        out.clear();
        let mut go = Vec::new();
        put_option(&mut go, OPT_STARTTLS, &[]);
        put_option(&mut go, OPT_GO, &info_data("disk", &[]));
        let (used, end) = handshake.feed(&catalog, &go, &mut out).unwrap();
        let session = ready(Ok(end));
        assert_eq!(used, go.len());
        assert!(session.style == ReplyStyle::Simple && !session.block_sizes);
        assert!(session.base_allocation.is_none() && session.no_zeroes);
        let text = b"TLS is in use already".to_vec();
        assert_eq!(answers(&out)[0], (OPT_STARTTLS, REP_ERR_INVALID, text));
    }
}

#[test]
fn bytes_that_came_along_with_request_for_tls_end_connection() {
    for option in [(OPT_STRUCTURED_REPLY, vec![]), (OPT_GO, info_data("disk", &[]))] {
        let (mut handshake, _, end) =
            with_tls(TlsMode::Offered, &[(OPT_STARTTLS, vec![]), option.clone()]);
        let bytes = OPTION_HEADER_BYTES + option.1.len();
        assert_eq!(end, Err(ProtocolError::BytesAfterStartTls(bytes)));
        assert_eq!(
            handshake.feed(&super::catalog(), &[], &mut Vec::new()),
            Ok((0, Progress::Closed))
        );
    }
    let (_, out, end) = with_tls(TlsMode::Offered, &[(OPT_STARTTLS, vec![1])]);
    assert_eq!((answers(&out)[0].1, end), (REP_ERR_INVALID, Ok(Progress::NeedMore)));
}
