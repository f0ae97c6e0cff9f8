//! How the process ends: at a panic, and on signals, of which the first one requests the end and the second one forces it.

use std::io;
use std::panic;
use std::process::{self, exit};
use std::thread;

use tokio::runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// The status with which a program ends at a panic, as Rust has it.
const PANICKED: i32 = 101;

/// Ends the process at the first panic, after it was reported: other tasks must not go on beside one whose state is unknown.
///
/// A release that is built with `panic = "abort"` would end by a signal, upon which a node may write the memory of the process to
/// its disk, and credentials with it.
pub fn exit_on_panic() {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        report(panic);
        exit(PANICKED);
    }));
}

/// A token that the first SIGTERM or SIGINT cancels. The second one ends the process at once, with the status that a
/// shell gives for that signal.
///
/// Signals are caught from the moment that this returns, for the rest of the process's life.
///
/// # Panics
///
/// Outside of a Tokio runtime.
pub fn on_signals() -> io::Result<CancellationToken> {
    let mut signals = Signals::caught()?;
    let token = CancellationToken::new();
    let cancelled = token.clone();
    tokio::spawn(async move {
        loop {
            let (name, kind) = signals.next().await;
            if cancelled.is_cancelled() {
                warn!(signal = name, "exiting immediately");
                exit(status(kind));
            }
            info!(signal = name, "stopping; a second signal exits immediately");
            cancelled.cancel();
        }
    });
    Ok(token)
}

/// Ends this process at the first SIGTERM or SIGINT if it is the first one of a container, with the status that a shell gives for
/// that signal. The kernel drops a signal for such a process that does not handle it. Any other process ends by itself.
///
/// For commands of which nothing must end in order.
pub fn exit_on_signals_in_container() -> io::Result<()> {
    if process::id() != 1 {
        return Ok(());
    }
    let runtime = runtime::Builder::new_current_thread().enable_io().build()?;
    let mut signals = {
        let _entered = runtime.enter();
        Signals::caught()?
    };
    // The command may block its own thread.
    thread::spawn(move || {
        let (_, kind) = runtime.block_on(signals.next());
        exit(status(kind));
    });
    Ok(())
}

/// The signals that ask a process to end.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Those that come from now on, for the rest of the process's life.
    fn caught() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) -> (&'static str, SignalKind) {
        tokio::select! {
            _ = self.terminate.recv() => ("SIGTERM", SignalKind::terminate()),
            _ = self.interrupt.recv() => ("SIGINT", SignalKind::interrupt()),
        }
    }
}

/// The status that a shell gives for this signal.
fn status(kind: SignalKind) -> i32 {
    128 + kind.as_raw_value()
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Child, Command, ExitStatus, Stdio};
    use std::time::{Duration, Instant};

    use super::*;

    const CHILD: &str = "OPERATOR_KIT_TEST_SHUTDOWN_CHILD";

    /// Not a test by itself: the process to which the tests below send signals, because a signal reaches all tests at once.
    #[tokio::test]
    async fn child() {
        if std::env::var_os(CHILD).is_none() {
            return;
        }
        let token = on_signals().unwrap();
        let mut out = std::io::stdout();
        writeln!(out, "\nREADY").unwrap();
        token.cancelled().await;
        writeln!(out, "\nSTOPPING").unwrap();
        std::future::pending::<()>().await;
    }

    struct Signalled(Child);

    impl Drop for Signalled {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    impl Signalled {
        fn start() -> (Self, impl Iterator<Item = String>) {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "shutdown::tests::child", "--nocapture"])
                .env(CHILD, "1")
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
            (Self(child), lines)
        }

        fn signal(&self, name: &str) {
            let sent = Command::new("kill").args(["-s", name, &self.0.id().to_string()]).status().unwrap();
            assert!(sent.success());
        }

        fn status(&mut self) -> ExitStatus {
            let deadline = Instant::now() + Duration::from_secs(20);
            loop {
                if let Some(status) = self.0.try_wait().unwrap() {
                    return status;
                }
                assert!(Instant::now() < deadline, "the child goes on after its second signal");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }

    #[test]
    fn the_first_signal_asks_and_the_second_ends() {
        for (first, second, status) in [("TERM", "TERM", 143), ("INT", "INT", 130), ("TERM", "INT", 130)] {
            let (mut child, mut lines) = Signalled::start();
            assert!(lines.any(|line| line == "READY"));
            child.signal(first);
            assert!(lines.any(|line| line == "STOPPING"));
            child.signal(second);
            assert_eq!(child.status().code(), Some(status), "{first} then {second}");
        }
    }
}
