//! The client's behavior when the daemon is slow, silent, gone or not a libvirt daemon at all.

mod connections;
mod support;

use std::time::{Duration, Instant};

use libvirt_client::{ConnectFailure, Error, ErrorCode, Options, ProtocolError};
use support::*;
use tokio::io::AsyncWriteExt;
use uuid::Uuid;

#[tokio::test]
async fn replies_may_come_in_any_order_and_in_any_pieces() {
    let daemon = FakeDaemon::start();
    let client = daemon.client();
    let serve = async {
        let mut peer = daemon.accept().await;
        let mut calls = Vec::new();
        for _ in 0..5 {
            calls.push(peer.expect(DOMAIN_LOOKUP_BY_UUID).await);
        }
        let mut bytes = Vec::new();
        for call in calls.iter().rev() {
            let payload = [string("a domain"), call.payload.clone(), (-1i32).to_be_bytes().to_vec()].concat();
            bytes.extend(packet(REMOTE, DOMAIN_LOOKUP_BY_UUID, 1, call.serial, 0, &payload));
        }
        for piece in bytes.chunks(7) {
            peer.send(piece).await;
            peer.0.flush().await.unwrap();
            tokio::task::yield_now().await;
        }
        peer
    };
    let look_up = |number| client.domain_lookup_by_uuid(Uuid::from_u128(number));
    let calls = async { tokio::join!(look_up(1), look_up(2), look_up(3), look_up(4), look_up(5)) };
    let (_peer, domains) = tokio::join!(serve, calls);
    for (number, domain) in (1u128..).zip(<[_; 5]>::from(domains)) {
        assert_eq!(domain.unwrap().uuid, Uuid::from_u128(number));
    }
}

#[tokio::test]
async fn a_libvirt_error_has_its_code_and_message() {
    let daemon = FakeDaemon::start();
    let client = daemon.client();
    let serve = async {
        let mut peer = daemon.accept().await;
        let call = peer.expect(DOMAIN_LOOKUP_BY_UUID).await;
        let bytes = packet(REMOTE, call.procedure, 1, call.serial, 1, &error(42, "Domain not found"));
        peer.send(&bytes).await;
        peer.answer(CONNECT_GET_LIB_VERSION, &version(9_000_000)).await;
    };
    let calls = async {
        let error = client.domain_lookup_by_uuid(Uuid::nil()).await.unwrap_err();
        assert_eq!(error.code(), Some(ErrorCode::NoDomain));
        assert_eq!(error.to_string(), "libvirt: Domain not found (error 42 NoDomain, domain 10)");
        assert_eq!(client.lib_version().await.unwrap(), 9_000_000, "the connection goes on");
    };
    tokio::join!(serve, calls);
}

#[tokio::test]
async fn a_lost_connection_fails_its_calls_and_the_next_call_opens_another() {
    let daemon = FakeDaemon::start();
    let client = daemon.client();
    let serve = async {
        let mut peer = daemon.accept().await;
        peer.expect(CONNECT_GET_LIB_VERSION).await;
        drop(peer);
        daemon.accept().await.answer(CONNECT_GET_LIB_VERSION, &version(7)).await;
    };
    let calls = async {
        let error = client.lib_version().await.unwrap_err();
        assert!(matches!(error, Error::Disconnected(_)), "{error}");
        assert_eq!(client.lib_version().await.unwrap(), 7);
    };
    tokio::join!(serve, calls);
}

#[tokio::test]
async fn a_silent_connection_times_out_and_the_next_call_opens_another() {
    let daemon = FakeDaemon::start();
    let client = daemon.impatient_client();
    let serve = async {
        let mut silent = daemon.accept().await;
        silent.expect(CONNECT_GET_LIB_VERSION).await;
        let mut lively = daemon.accept().await;
        silent.hung_up().await;
        lively.answer(CONNECT_GET_LIB_VERSION, &version(7)).await;
    };
    let calls = async {
        let started = Instant::now();
        let error = client.lib_version().await.unwrap_err();
        assert!(matches!(error, Error::Timeout { procedure: "CONNECT_GET_LIB_VERSION", .. }), "{error}");
        assert!(started.elapsed() >= short().call_timeout);
        assert_eq!(client.lib_version().await.unwrap(), 7);
    };
    tokio::join!(serve, calls);
}

#[tokio::test]
async fn calls_of_a_connection_that_left_one_unanswered_still_get_their_replies() {
    let daemon = FakeDaemon::start();
    let client = daemon.impatient_client();
    let serve = async {
        let mut slow = daemon.accept().await;
        let _unanswered = slow.expect(CONNECT_GET_LIB_VERSION).await;
        let late = slow.expect(DOMAIN_LOOKUP_BY_UUID).await;
        // The other call has timed out when its caller opens a new connection.
        let mut next = daemon.accept().await;
        next.answer(CONNECT_GET_LIB_VERSION, &version(7)).await;
        slow.reply(&late, &[string("late"), vec![0; 16], vec![0; 4]].concat()).await;
        slow.hung_up().await;
    };
    let first = async {
        assert!(client.lib_version().await.is_err());
        client.lib_version().await
    };
    let second = async {
        // Made later, so its deadline is later, too.
        tokio::time::sleep(short().call_timeout / 2).await;
        client.domain_lookup_by_uuid(Uuid::nil()).await
    };
    let ((), first, second) = tokio::join!(serve, first, second);
    assert_eq!(first.unwrap(), 7);
    assert_eq!(second.unwrap().name, "late");
}

#[tokio::test]
async fn a_daemon_that_hangs_while_connecting_fails_every_waiting_call_at_once() {
    let daemon = FakeDaemon::start();
    let client = daemon.impatient_client();
    let hang = daemon.accept_silently();
    let calls = async {
        let (a, b, c) = tokio::join!(client.lib_version(), client.lib_version(), client.lib_version());
        for error in [a, b, c].map(Result::unwrap_err) {
            let Error::Connect(error) = error else { panic!("{error}") };
            assert!(matches!(error.reason, ConnectFailure::Silent(_)), "{error}");
            assert!(error.peer.ends_with(daemon.socket().to_str().unwrap()), "{error}");
        }
    };
    tokio::join!(hang, calls);
    let another = tokio::time::timeout(Duration::from_millis(200), daemon.accept_silently()).await;
    assert!(another.is_err(), "they share one attempt");
}

#[tokio::test]
async fn a_missing_socket_fails_at_once_with_advice() {
    let client = {
        let daemon = FakeDaemon::start();
        daemon.client()
    };
    let error = client.lib_version().await.unwrap_err();
    assert!(matches!(error, Error::Connect(_)), "{error}");
    assert!(error.to_string().contains("start libvirtd"), "{error}");
}

#[tokio::test]
async fn a_ping_is_answered_with_a_pong() {
    let daemon = FakeDaemon::start();
    let client = daemon.client();
    let serve = async {
        let mut peer = daemon.accept().await;
        let call = peer.expect(CONNECT_GET_LIB_VERSION).await;
        peer.send(&packet(KEEPALIVE, 1, 2, 0, 0, &[])).await;
        let pong = peer.read().await.unwrap();
        assert_eq!((pong.program, pong.procedure, pong.kind, pong.serial), (KEEPALIVE, 2, 2, 0));
        assert!(pong.payload.is_empty());
        peer.reply(&call, &version(7)).await;
        peer
    };
    let (_peer, answer) = tokio::join!(serve, client.lib_version());
    assert_eq!(answer.unwrap(), 7);
}

#[tokio::test]
async fn unexpected_replies_and_events_are_ignored() {
    let daemon = FakeDaemon::start();
    let client = daemon.client();
    let serve = async {
        let mut peer = daemon.accept().await;
        let call = peer.expect(CONNECT_GET_LIB_VERSION).await;
        peer.send(&packet(REMOTE, CONNECT_GET_LIB_VERSION, 1, call.serial + 99, 0, &version(1))).await;
        peer.send(&packet(REMOTE, 318, 2, 0, 0, &[0; 40])).await;
        peer.reply(&call, &version(7)).await;
        peer
    };
    let (_peer, answer) = tokio::join!(serve, client.lib_version());
    assert_eq!(answer.unwrap(), 7);
}

#[tokio::test]
async fn a_dropped_call_leaves_the_connection_as_it_was() {
    let daemon = FakeDaemon::start();
    let client = daemon.client();
    let (arrived, arrival) = tokio::sync::oneshot::channel();
    let serve = async {
        let mut peer = daemon.accept().await;
        let dropped = peer.expect(CONNECT_GET_LIB_VERSION).await;
        arrived.send(()).unwrap();
        let next = peer.expect(CONNECT_GET_LIB_VERSION).await;
        assert_ne!(dropped.serial, next.serial);
        peer.reply(&dropped, &version(1)).await;
        peer.reply(&next, &version(7)).await;
        peer
    };
    let calls = async {
        tokio::select! {
            answer = client.lib_version() => panic!("{answer:?}"),
            at_the_daemon = arrival => at_the_daemon.unwrap(),
        }
        client.lib_version().await
    };
    let (_peer, answer) = tokio::join!(serve, calls);
    assert_eq!(answer.unwrap(), 7);
}

#[tokio::test]
async fn one_refusal_answers_for_all_calls_of_a_while() {
    const SASL: u32 = 1;
    let daemon = FakeDaemon::start();
    let client = daemon.client_with(Options { connections: 4, ..Options::default() });
    let refuse = async { daemon.accept_silently().await.answer(AUTH_LIST, &words(&[SASL])).await };
    let (_, refusal) = tokio::join!(refuse, client.lib_version());
    assert!(matches!(refusal, Err(Error::Auth(_))), "{refusal:?}");
    for _ in 0..10 {
        let calls = (0..10).map(|_| client.lib_version());
        for answer in futures::future::join_all(calls).await {
            assert_eq!(answer.unwrap_err().to_string(), refusal.as_ref().unwrap_err().to_string());
        }
    }
    let another = tokio::time::timeout(Duration::from_millis(200), daemon.accept_silently()).await;
    assert!(another.is_err(), "it was asked again");
}

#[tokio::test]
async fn a_client_that_was_refused_asks_again_after_a_while() {
    let daemon = FakeDaemon::start();
    let client = daemon.client();
    let refuse = async { daemon.accept_silently().await.answer(AUTH_LIST, &words(&[1])).await };
    let (_, refusal) = tokio::join!(refuse, client.lib_version());
    assert!(matches!(refusal, Err(Error::Auth(_))), "{refusal:?}");
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(10)).await;
    tokio::time::resume();
    let serve = async {
        let mut peer = daemon.accept().await;
        peer.answer(CONNECT_GET_LIB_VERSION, &version(7)).await;
        peer
    };
    let (_peer, answer) = tokio::join!(serve, client.lib_version());
    assert_eq!(answer.unwrap(), 7);
}

#[tokio::test]
async fn sasl_is_refused_with_what_to_do() {
    let daemon = FakeDaemon::start();
    let client = daemon.client();
    let serve = async { daemon.accept_silently().await.answer(AUTH_LIST, &words(&[1])).await };
    let (_, answer) = tokio::join!(serve, client.lib_version());
    let error = answer.unwrap_err();
    assert!(matches!(&error, Error::Auth(text) if text.contains("SASL")), "{error}");
}

#[tokio::test]
async fn polkit_is_asked_through_the_daemon() {
    let daemon = FakeDaemon::start();
    let client = daemon.client();
    let serve = async {
        let mut refused = daemon.accept_silently().await;
        refused.answer(AUTH_LIST, &words(&[2])).await;
        let call = refused.expect(AUTH_POLKIT).await;
        refused.send(&packet(REMOTE, AUTH_POLKIT, 1, call.serial, 1, &error(45, "no agent"))).await;
        let mut allowed = daemon.accept_silently().await;
        allowed.answer(AUTH_LIST, &words(&[2])).await;
        allowed.answer(AUTH_POLKIT, &[0, 0, 0, 1]).await;
        allowed.answer(CONNECT_OPEN, &[]).await;
        allowed.answer(CONNECT_GET_LIB_VERSION, &version(7)).await;
    };
    let calls = async {
        let error = client.lib_version().await.unwrap_err();
        assert!(matches!(&error, Error::Auth(text) if text.contains("no agent")), "{error}");
        assert_eq!(daemon.client().lib_version().await.unwrap(), 7);
    };
    tokio::join!(serve, calls);
}

/// A daemon that asks polkit lets root in while it answers `AUTH_LIST`. Another of its threads may take up the next call before.
#[tokio::test]
async fn a_second_connection_that_the_daemon_refuses_too_early_is_opened() {
    let daemon = FakeDaemon::start();
    let client = daemon.client();
    let serve = async {
        let mut first = daemon.accept().await;
        first.expect(CONNECT_GET_LIB_VERSION).await;
        drop(first);
        let mut second = daemon.accept_silently().await;
        second.answer(AUTH_LIST, &words(&[0])).await;
        let early = second.expect(CONNECT_OPEN).await;
        let refusal = error_of(7, 39, "authentication required");
        second.send(&packet(REMOTE, CONNECT_OPEN, 1, early.serial, 1, &refusal)).await;
        second.answer(CONNECT_OPEN, &[]).await;
        second.answer(CONNECT_GET_LIB_VERSION, &version(7)).await;
        second
    };
    let calls = async { [client.lib_version().await, client.lib_version().await] };
    let (_second, [lost, answer]) = tokio::join!(serve, calls);
    assert!(matches!(lost, Err(Error::Disconnected(_))), "{lost:?}");
    assert_eq!(answer.unwrap(), 7);
}

#[tokio::test]
async fn a_peer_that_violates_the_protocol_is_disconnected_with_an_error() {
    for (bytes, expected) in [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(), ProtocolError::Length(0x4854_5450)),
        (packet(1, 66, 1, 1, 0, &[]), ProtocolError::Program { program: 1, version: 1 }),
        (packet(REMOTE, 66, 7, 1, 0, &[]), ProtocolError::Kind(7)),
        (packet(REMOTE, 66, 0, 1, 0, &[]), ProtocolError::Direction),
        (packet(REMOTE, 67, 1, 1, 0, &[]), ProtocolError::Procedure { called: 66, got: 67 }),
    ] {
        let daemon = FakeDaemon::start();
        let client = daemon.client();
        let serve = async {
            let mut peer = daemon.accept_silently().await;
            peer.expect(AUTH_LIST).await;
            peer.send(&bytes).await;
            peer.hung_up().await;
        };
        let ((), answer) = tokio::join!(serve, client.lib_version());
        let error = answer.unwrap_err();
        assert!(matches!(&error, Error::Protocol(got) if *got == expected), "{error} is not {expected}");
    }
}

#[tokio::test]
async fn the_last_client_dropped_hangs_up() {
    let daemon = FakeDaemon::start();
    let client = daemon.client();
    let (mut peer, version) = tokio::join!(
        async {
            let mut peer = daemon.accept().await;
            peer.answer(CONNECT_GET_LIB_VERSION, &version(7)).await;
            peer
        },
        client.lib_version()
    );
    version.unwrap();
    drop(client);
    peer.hung_up().await;
}
