use std::time::Duration;

use futures::FutureExt as _;
use tokio::time::timeout;

use super::*;
use crate::procedure::{ConnectGetLibVersion, ConnectGetType, DomainDefineXml};

/// What a stream holds until it is read.
const STREAM: usize = 1024;

/// A connection without a daemon, and the other end of its stream.
fn connection() -> (Connection, tokio::io::DuplexStream) {
    let (here, there) = tokio::io::duplex(STREAM);
    (Connection::over(here), there)
}

#[tokio::test]
async fn a_dropped_call_leaves_nothing_behind() {
    let (connection, _there) = connection();
    let mut call = Box::pin(connection.call::<ConnectGetLibVersion>(()));
    assert!((&mut call).now_or_never().is_none());
    assert_eq!(connection.waiting.lock().calls.len(), 1);
    drop(call);
    assert!(connection.waiting.lock().calls.is_empty());
}

#[tokio::test]
async fn a_call_that_is_dropped_before_it_is_sent_is_never_sent() {
    let (connection, mut there) = connection();
    // The first one fills the stream, so that the others wait for the writer.
    let long = "x".repeat(2 * STREAM);
    let mut first = Box::pin(connection.call::<DomainDefineXml>((&long,)));
    assert!((&mut first).now_or_never().is_none());
    tokio::task::yield_now().await;
    let mut dropped = Box::pin(connection.call::<ConnectGetLibVersion>(()));
    assert!((&mut dropped).now_or_never().is_none());
    let mut last = Box::pin(connection.call::<ConnectGetType>(()));
    assert!((&mut last).now_or_never().is_none());
    drop(dropped);
    let sent = async { [Packet::read(&mut there, |_| true).await, Packet::read(&mut there, |_| true).await] };
    let sent = timeout(Duration::from_secs(10), sent).await.unwrap();
    let procedures = sent.map(|packet| packet.unwrap().header.procedure);
    assert_eq!(procedures, [DomainDefineXml::NUMBER, ConnectGetType::NUMBER]);
}

#[tokio::test]
async fn a_disconnect_fails_waiting_and_later_calls_with_its_first_reason() {
    let (connection, there) = connection();
    drop(there);
    for _ in 0..2 {
        let call = connection.call::<ConnectGetLibVersion>(());
        let error = timeout(Duration::from_secs(10), call).await.unwrap().unwrap_err();
        assert!(matches!(&error, Error::Disconnected(_)), "{error}");
    }
    assert!(!connection.is_open());
    assert!(connection.waiting.lock().calls.is_empty());
}

#[test]
fn serials_wrap_and_skip_those_in_use() {
    let waiting = Waiting::default();
    waiting.lock().last_serial = u32::MAX - 1;
    let register = || {
        let (sender, receiver) = oneshot::channel();
        // The test drops the receiver: it tests the number.
        drop(receiver);
        waiting.register(1, sender).unwrap()
    };
    assert_eq!([register(), register(), register()], [u32::MAX, 0, 1]);
    waiting.lock().last_serial = u32::MAX - 1;
    assert_eq!(register(), 2);
}
