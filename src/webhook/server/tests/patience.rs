//! How long the server waits for clients, and for how many, on a clock that the tests control.

use futures::FutureExt;

use super::{super::body::ARRIVAL_TIME, *};

/// Stops the clock of a test, which would run ahead when all tasks wait. At the deadline it runs, so that a test fails rather
/// than hangs.
fn stop_the_clock() {
    tokio::spawn(async {
        let end = std::time::Instant::now() + DEADLINE;
        while std::time::Instant::now() < end {
            tokio::task::yield_now().await;
        }
    });
}

/// Lets the other tasks run until this is true.
async fn comes_true(so: impl Fn() -> bool) {
    let end = std::time::Instant::now() + DEADLINE;
    while !so() {
        assert!(std::time::Instant::now() < end, "it did not come true in time");
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn bodies_that_do_not_arrive_keep_no_other_waiting() {
    let fixture = Fixture::plain();
    let mut stalled = Vec::new();
    for length in ["content-length: 4194304", "transfer-encoding: chunked"].repeat(8) {
        let mut stream = fixture.connect().await.unwrap();
        let head = format!("POST {PATH} HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n{length}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        stalled.push(stream);
    }
    stop_the_clock();
    let before = Instant::now();
    for stream in &mut stalled {
        // Its body is being waited for.
        let mut wanted = [0; b"HTTP/1.1 100 Continue\r\n\r\n".len()];
        stream.read_exact(&mut wanted).await.unwrap();
    }
    assert!(is_patched(&ask(&mut fixture.http1().await, a_review()).await));
    assert_eq!(before.elapsed(), Duration::ZERO, "it was answered before any of the others failed");
    tokio::time::advance(BODY_TIME).await;
    for mut stream in stalled {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    }
    assert_eq!([fixture.count("unread"), fixture.count("malformed")], ["16", "0"]);
}

/// A body that is no review, of so many bytes but the last.
async fn stall(fixture: &Fixture, length: usize) -> ClientStream<TcpStream> {
    let mut stream = fixture.connect().await.unwrap();
    send_all_but_the_last(&mut stream, length).await;
    stream
}

async fn send_all_but_the_last(stream: &mut ClientStream<TcpStream>, length: usize) {
    let head = format!("POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&vec![b' '; length - 1]).await.unwrap();
    stream.flush().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn clients_that_take_all_memory_do_not_delay_usual_reviews() {
    let fixture = Fixture::plain();
    stop_the_clock();
    let before = Instant::now();
    let mut stalled = stall_two(&fixture).await;
    let third = request(Method::POST, PATH, vec![b' '; MOST_BODY]);
    let mut http1 = fixture.http1().await;
    let third = tokio::spawn(async move { ask(&mut http1, third).await.0 });
    for _ in 0..100 {
        assert!(is_patched(&ask(&mut fixture.http1().await, a_review()).await));
    }
    assert_eq!(before.elapsed(), Duration::ZERO, "nobody's time was up");
    assert!(!third.is_finished(), "there is memory for two");
    tokio::time::advance(ARRIVAL_TIME).await;
    assert_eq!(third.await.unwrap(), 400);
    displaced(&mut stalled[0]).await;
    assert_eq!([fixture.count("unread"), fixture.count("malformed")], ["1", "1"]);
    assert!(
        stalled[1].read(&mut [0]).now_or_never().is_none(),
        "the oldest one has to give way, and no other"
    );
}

/// Two bodies that take all shared memory and do not arrive.
async fn stall_two(fixture: &Fixture) -> Vec<ClientStream<TcpStream>> {
    let mut stalled = Vec::new();
    for _ in 0..2 {
        stalled.push(stall(fixture, MOST_BODY).await);
        // It arrives: what came before it on this thread does, too.
        assert!(is_patched(&ask(&mut fixture.http1().await, a_review()).await));
    }
    stalled
}

/// Waits for the answer that others needed this client's memory.
async fn displaced(stream: &mut ClientStream<TcpStream>) {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
}

/// A review of a Pod with a long annotation.
fn a_large_review() -> Request<Full<Bytes>> {
    let annotations = json!({ "policy": "x".repeat(300 * 1024) });
    let review = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": { "uid": "u-1", "operation": "CREATE", "object": {
            "metadata": { "annotations": annotations },
            "spec": { "runtimeClassName": "kata-remote", "containers": [{ "name": "a" }] },
        } },
    });
    request(Method::POST, PATH, review.to_string())
}

/// Asks on a connection of its own.
async fn ask_for_large(fixture: &Fixture) -> tokio::task::JoinHandle<bool> {
    let mut http1 = fixture.http1().await;
    tokio::spawn(async move { is_patched(&ask(&mut http1, a_large_review()).await) })
}

#[tokio::test(start_paused = true)]
async fn a_large_review_is_answered_while_others_keep_stalling() {
    let fixture = Fixture::plain();
    stop_the_clock();
    let before = Instant::now();
    let mut stalled = stall_two(&fixture).await;
    for round in 1..=3 {
        let large = ask_for_large(&fixture).await;
        tokio::time::advance(ARRIVAL_TIME).await;
        assert!(large.await.unwrap());
        assert!(before.elapsed() <= ARRIVAL_TIME * round, "{:?}", before.elapsed());
        displaced(&mut stalled.remove(0)).await;
        // The attacker comes again.
        stalled.push(stall(&fixture, MOST_BODY).await);
        assert!(is_patched(&ask(&mut fixture.http1().await, a_review()).await));
    }
}

#[tokio::test(start_paused = true)]
async fn slow_reviews_take_no_more_memory_than_they_announce() {
    let fixture = Fixture::plain();
    stop_the_clock();
    let mut slow = Vec::new();
    for _ in 0..100 {
        slow.push(stall(&fixture, 40 * 1024).await);
    }
    assert!(is_patched(&ask(&mut fixture.http1().await, a_review()).await));
    tokio::time::advance(ARRIVAL_TIME).await;
    assert!(is_patched(&ask(&mut fixture.http1().await, a_review()).await));
    assert!(slow.iter_mut().all(|it| it.read(&mut [0]).now_or_never().is_none()), "there is memory for all");
}

#[tokio::test(start_paused = true)]
async fn many_large_reviews_at_once_wait_for_memory_and_displace_none() {
    let fixture = Fixture::plain();
    stop_the_clock();
    let before = Instant::now();
    let mut large = Vec::new();
    for _ in 0..40 {
        large.push(ask_for_large(&fixture).await);
    }
    for large in large {
        assert!(large.await.unwrap());
    }
    assert_eq!(before.elapsed(), Duration::ZERO, "nobody's time was up");
}

#[tokio::test(start_paused = true)]
async fn answers_must_be_taken_soon() {
    let fixture = Fixture::plain();
    let containers: Vec<_> =
        (0..400).map(|index| json!({ "name": format!("container-{index:0200}") })).collect();
    let review = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": { "uid": "u-1", "operation": "CREATE", "object": {
            "metadata": {}, "spec": { "runtimeClassName": "kata-remote", "containers": containers },
        } },
    })
    .to_string();
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let tcp = socket.connect(fixture.server.address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = TlsConnector::from(Arc::new(fixture.client())).connect(name, tcp).await.unwrap();
    let head = format!("POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", review.len());
    stop_the_clock();
    // Far more answers than the system takes in for a client.
    let asking = async {
        loop {
            stream.write_all(head.as_bytes()).await?;
            stream.write_all(review.as_bytes()).await?;
            stream.flush().await?;
        }
    };
    let mut asking = std::pin::pin!(asking);
    let start = Instant::now();
    let ended: io::Result<()> = loop {
        tokio::select! {
            biased;
            ended = asking.as_mut() => break ended,
            () = tokio::task::yield_now() => tokio::time::advance(Duration::from_millis(1)).await,
        }
    };
    assert!(ended.is_err());
    assert!(start.elapsed() < IDLE / 2, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_waits_is_kept_longer_than_api_servers_keep_it() {
    let fixture = Fixture::plain();
    let mut http1 = fixture.http1().await;
    stop_the_clock();
    for _ in 0..3 {
        assert!(is_patched(&ask(&mut http1, a_review()).await));
        tokio::time::advance(Duration::from_secs(91)).await;
    }
    assert!(is_patched(&ask(&mut http1, a_review()).await));
    tokio::time::advance(IDLE).await;
    comes_true(|| http1.is_closed()).await;
}

#[tokio::test(start_paused = true)]
async fn a_request_that_has_begun_must_arrive_soon() {
    let fixture = Fixture::plain();
    let mut stream = fixture.connect().await.unwrap();
    stop_the_clock();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut wanted = vec![0; 20];
    stream.read_exact(&mut wanted).await.unwrap();
    while !wanted.ends_with(b"\r\n\r\nok\n") {
        wanted.push(stream.read_u8().await.unwrap());
    }
    tokio::time::advance(REQUEST_TIME * 2).await;
    let start = Instant::now();
    stream.write_all(b"POST ").await.unwrap();
    let step = Duration::from_millis(100);
    // The server has to see the first byte before its time runs.
    let mut byte = [0];
    while stream.read(&mut byte).now_or_never().is_none() {
        tokio::time::advance(step).await;
        let _ = stream.write_all(b"x").await;
    }
    assert!(start.elapsed() >= REQUEST_TIME && start.elapsed() < IDLE / 2, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_small_body_that_does_not_arrive_ends_its_connection() {
    let fixture = Fixture::plain();
    let mut stalled = fixture.connect().await.unwrap();
    stop_the_clock();
    tokio::time::advance(Duration::from_millis(1)).await;
    let before = Instant::now();
    send_all_but_the_last(&mut stalled, 1024).await;
    assert!(is_patched(&ask(&mut fixture.http1().await, a_review()).await));
    while stalled.read(&mut [0; 1024]).now_or_never().is_none_or(|read| matches!(read, Ok(1..))) {
        assert!(before.elapsed() < REQUEST_TIME * 2, "it is still open");
        tokio::time::advance(Duration::from_millis(100)).await;
    }
    assert!(before.elapsed() >= REQUEST_TIME, "{:?}", before.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_client_with_a_request_displaces_idle_connections() {
    let fixture = Fixture::plain();
    let mut kept = fixture.http1().await;
    stop_the_clock();
    let connect = || TcpStream::connect(fixture.server.address);
    let mut staying = try_join_all((0..CONNECTIONS - 50).map(|_| connect())).await.unwrap();
    // One that is served came after them.
    drop(fixture.http1().await);
    tokio::time::advance(Duration::from_millis(1)).await;
    let before = Instant::now();
    assert!(is_patched(&ask(&mut kept, a_review()).await));
    staying.extend(try_join_all((0..100).map(|_| connect())).await.unwrap());
    for _ in 0..3 {
        assert!(is_patched(&ask(&mut fixture.http1().await, a_review()).await));
    }
    assert!(is_patched(&ask(&mut kept, a_review()).await), "who asked is kept");
    let mut left = 0;
    for stream in &mut staying {
        left += usize::from(stream.read(&mut [0]).now_or_never().is_some());
    }
    assert!((50..100).contains(&left), "{left} had to leave");
    assert_eq!(before.elapsed(), Duration::ZERO, "nobody's time was up");
}

#[tokio::test(start_paused = true)]
async fn clients_that_never_finish_a_request_do_not_keep_others_out() {
    let fixture = Fixture::plain();
    stop_the_clock();
    let before = Instant::now();
    let mut stalled = Vec::new();
    for end in ["", "host: x\r\ncontent-length: 1000\r\n\r\n"] {
        for _ in 0..CONNECTIONS + 90 {
            let mut stream = fixture.connect().await.unwrap();
            stream.write_all(format!("POST {PATH} HTTP/1.1\r\n{end}").as_bytes()).await.unwrap();
            stream.flush().await.unwrap();
            stalled.push(stream);
        }
        assert!(is_patched(&ask(&mut fixture.http1().await, a_review()).await));
    }
    assert_eq!(before.elapsed(), Duration::ZERO, "nobody's time was up");
}

#[tokio::test(start_paused = true)]
async fn silent_clients_do_not_keep_others_out() {
    let fixture = Fixture::plain();
    let mut silent = Vec::new();
    for _ in 0..CONNECTIONS + 8 {
        silent.push(TcpStream::connect(fixture.server.address).await.unwrap());
    }
    // The clock of this test runs ahead whenever all wait, so the silent ones are past their time at once.
    let mut http1 = fixture.http1().await;
    assert!(is_patched(&ask(&mut http1, a_review()).await));
}
