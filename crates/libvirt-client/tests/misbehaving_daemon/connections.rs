//! How calls are spread over connections, and what a connection with unanswered calls costs the others.

use std::time::Duration;

use libvirt_client::{Error, Options};
use uuid::Uuid;

use crate::support::*;

#[tokio::test]
async fn no_more_than_five_calls_are_on_a_connection_and_the_rest_wait_here() {
    let daemon = FakeDaemon::start();
    let client = daemon.client_with(Options { connections: 2, stalled_after: SOON, ..Options::default() });
    let serve = async {
        let (mut first, mut second) = (daemon.accept().await, daemon.accept().await);
        let mut held = Vec::new();
        for _ in 0..5 {
            held.push(first.expect(CONNECT_GET_LIB_VERSION).await);
            second.answer(CONNECT_GET_LIB_VERSION, &version(2)).await;
        }
        // Only the second one has room for further calls.
        for _ in 0..10 {
            second.answer(CONNECT_GET_LIB_VERSION, &version(2)).await;
        }
        for call in &held {
            first.reply(call, &version(1)).await;
        }
        (first, second)
    };
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let client = client.clone();
        calls.spawn(async move { client.lib_version().await.unwrap() });
    }
    let (_peers, mut versions) = tokio::join!(serve, calls.join_all());
    versions.sort_unstable();
    assert_eq!(versions, [[1; 5].as_slice(), &[2; 15]].concat());
}

#[tokio::test]
async fn calls_that_stall_give_their_places_to_others_and_still_get_their_replies() {
    let daemon = FakeDaemon::start();
    let stalled_after = Duration::from_secs(1);
    let client = daemon.client_with(Options { connections: 1, stalled_after, ..Options::default() });
    let serve = async {
        let mut stalled = daemon.accept().await;
        let mut held = Vec::new();
        for _ in 0..5 {
            held.push(stalled.expect(CONNECT_GET_LIB_VERSION).await);
        }
        // There is only one place for a connection, and it is full. The next call gets another one.
        let mut second = daemon.accept().await;
        for _ in 0..10 {
            second.answer(CONNECT_GET_LIB_VERSION, &version(2)).await;
        }
        for call in &held {
            stalled.reply(call, &version(1)).await;
        }
        stalled.hung_up().await;
        second
    };
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..15 {
        let client = client.clone();
        calls.spawn(async move { client.lib_version().await.unwrap() });
    }
    let (_peer, mut versions) = tokio::join!(serve, calls.join_all());
    versions.sort_unstable();
    assert_eq!(versions, [[1; 5].as_slice(), &[2; 10]].concat());
}

/// virtproxyd keeps the connection to its client when virtqemud restarts, and never connects to virtqemud again for it.
#[tokio::test]
async fn a_connection_whose_daemon_lost_the_one_behind_it_gets_no_further_calls() {
    let daemon = FakeDaemon::start();
    let client = daemon.client_with(Options { connections: 1, ..Options::default() });
    let serve = async {
        let mut first = daemon.accept().await;
        for refusal in [error(1, "no answer from QEMU"), error_of(7, 1, "client socket is closed")] {
            let call = first.expect(CONNECT_GET_LIB_VERSION).await;
            first.send(&packet(REMOTE, call.procedure, 1, call.serial, 1, &refusal)).await;
        }
        let mut second = daemon.accept().await;
        second.answer(CONNECT_GET_LIB_VERSION, &version(2)).await;
        (first, second)
    };
    let calls =
        async { [client.lib_version().await, client.lib_version().await, client.lib_version().await] };
    let (_peers, [other, lost, again]) = tokio::join!(serve, calls);
    assert!(other.is_err() && lost.is_err());
    assert_eq!(again.unwrap(), 2);
}

#[tokio::test]
async fn after_an_unanswered_call_the_next_one_uses_no_connection_that_was_idle() {
    let daemon = FakeDaemon::start();
    let client = daemon.impatient_client();
    let serve = async {
        let (mut first, mut second) = (daemon.accept().await, daemon.accept().await);
        for _ in 0..5 {
            first.answer(CONNECT_GET_LIB_VERSION, &version(1)).await;
        }
        second.answer(CONNECT_GET_LIB_VERSION, &version(1)).await;
        // From now on neither answers, as after a failover of the host's address.
        let mut third = daemon.accept().await;
        second.hung_up().await;
        third.answer(CONNECT_GET_LIB_VERSION, &version(2)).await;
        (first, third)
    };
    let calls = async {
        for answer in futures::future::join_all((0..6).map(|_| client.lib_version())).await {
            assert_eq!(answer.unwrap(), 1);
        }
        [client.lib_version().await, client.lib_version().await]
    };
    let (_peers, [silent, next]) = tokio::join!(serve, calls);
    assert!(matches!(silent, Err(Error::Timeout { .. })), "{silent:?}");
    assert_eq!(next.unwrap(), 2);
}

#[tokio::test]
async fn no_more_calls_stall_than_may_and_the_rest_wait_here() {
    let daemon = FakeDaemon::start();
    let stalled_after = Duration::from_millis(100);
    let options = Options { connections: 1, stalled_after, stalled: 5, ..Options::default() };
    let client = daemon.client_with(options);
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..15 {
        let client = client.clone();
        calls.spawn(async move { client.lib_version().await.unwrap() });
    }
    let (mut first, mut second) = (daemon.accept().await, daemon.accept().await);
    let mut held = Vec::new();
    for peer in [&mut first, &mut second] {
        for _ in 0..5 {
            held.push(peer.expect(CONNECT_GET_LIB_VERSION).await);
        }
    }
    // Five have stalled, five keep their places, and until that changes five have none.
    assert!(tokio::time::timeout(stalled_after * 5, daemon.accept()).await.is_err());
    first.reply(&held[0], &version(1)).await;
    assert_eq!(calls.join_next().await.unwrap().unwrap(), 1);
    drop(calls);
}

#[tokio::test]
async fn a_call_uses_the_connection_with_the_fewest_calls() {
    let daemon = FakeDaemon::start();
    let client = daemon.client_with(Options { connections: 2, stalled_after: SOON, ..Options::default() });
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..6 {
        let client = client.clone();
        calls.spawn(async move { client.lib_version().await.unwrap() });
    }
    // Five are on the first connection and one is on the second.
    let (mut first, mut second) = (daemon.accept().await, daemon.accept().await);
    let on_second = second.expect(CONNECT_GET_LIB_VERSION).await;
    for _ in 0..2 {
        first.answer(CONNECT_GET_LIB_VERSION, &version(1)).await;
        assert_eq!(calls.join_next().await.unwrap().unwrap(), 1);
    }
    // Three are left on the first, and one is on the second.
    let another = client.clone();
    calls.spawn(async move { another.lib_version().await.unwrap() });
    second.answer(CONNECT_GET_LIB_VERSION, &version(2)).await;
    assert_eq!(calls.join_next().await.unwrap().unwrap(), 2);

    second.reply(&on_second, &version(2)).await;
    for _ in 0..3 {
        first.answer(CONNECT_GET_LIB_VERSION, &version(1)).await;
    }
    assert_eq!(calls.join_all().await.iter().sum::<u64>(), 5);
}

#[tokio::test]
async fn a_further_connection_shows_whether_the_address_still_leads_to_the_host() {
    let daemon = FakeDaemon::start();
    let [expected, other] = [1, 2].map(Uuid::from_u128);
    let client = daemon.client_with(Options { connections: 1, host: Some(expected), ..Options::default() });
    let capabilities =
        |host: Uuid| string(&format!("<capabilities><host><uuid>{host}</uuid></host></capabilities>"));
    let serve = async {
        let mut kept = daemon.accept().await;
        kept.answer(CONNECT_GET_CAPABILITIES, &capabilities(expected)).await;
        kept.answer(CONNECT_GET_LIB_VERSION, &version(1)).await;
        for host in [expected, other] {
            let mut further = daemon.accept().await;
            further.answer(CONNECT_GET_CAPABILITIES, &capabilities(host)).await;
            further.hung_up().await;
        }
        kept.answer(CONNECT_GET_LIB_VERSION, &version(2)).await;
        kept
    };
    let calls = async {
        assert_eq!(client.lib_version().await.unwrap(), 1);
        client.verify_host().await.unwrap();
        let error = client.verify_host().await.unwrap_err();
        assert!(matches!(error, Error::OtherHost { found, .. } if found == Some(other)), "{error}");
        assert_eq!(client.lib_version().await.unwrap(), 2, "the connection for calls stays");
    };
    tokio::join!(serve, calls);
}

#[tokio::test]
async fn without_an_expected_host_nothing_is_opened_to_verify_it() {
    let daemon = FakeDaemon::start();
    // The daemon would not answer.
    daemon.client().verify_host().await.unwrap();
}
