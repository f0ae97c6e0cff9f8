//! A program on the far side that connects to libvirt's socket.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use russh::client::Msg;
use russh::{Channel, ChannelMsg, ChannelReadHalf};
use tokio::io::{AsyncRead, AsyncWriteExt as _, DuplexStream, ReadBuf};

use super::{Stream, broken};
use crate::error::{ConnectError, Error};
use crate::uri::{Endpoint, Ssh};

/// The program's output that is not read yet.
const OUTPUT: usize = 16 * 1024;
/// The most that is kept of the program's error output.
const COMPLAINT: usize = 1024;

/// Starts the program.
pub(super) async fn run(
    endpoint: &Endpoint,
    ssh: &Ssh,
    mut channel: Channel<Msg>,
) -> Result<Box<dyn Stream>, Error> {
    channel.exec(true, command(ssh)).await.map_err(|error| broken(endpoint, error))?;
    loop {
        match channel.wait().await {
            Some(ChannelMsg::Success) => break,
            Some(ChannelMsg::Failure) | None => {
                let problem = "sshd neither connects to the socket nor starts a program that does; let it \
                               (AllowStreamLocalForwarding yes)";
                return Err(ConnectError::io(endpoint, io::Error::other(problem)).into());
            }
            // Such as the window's size.
            Some(_) => {}
        }
    }
    let (messages, input) = channel.split();
    // With a simplex pipe neither end would learn that the other one is gone.
    let (output, sink) = tokio::io::duplex(OUTPUT);
    let complaint = Arc::default();
    tokio::spawn(pump(messages, sink, Arc::clone(&complaint)));
    Ok(Box::new(tokio::io::join(Output { output, complaint }, Box::pin(input.make_writer()))))
}

/// The command line, for any shell of the user there.
fn command(ssh: &Ssh) -> String {
    let native = ssh.native.as_deref().unwrap_or_default();
    let Some(netcat) = &ssh.netcat else { return format!("virt-ssh-helper {}", quote(native)) };
    // The first argument is for the helper, the second one is the netcat, and the rest are sockets. Some netcats stay when their
    // input has ended, and libvirt would keep their connections.
    let script = "test -n \"$0\" && command -v virt-ssh-helper >/dev/null && exec virt-ssh-helper \"$0\"; \
                  n=$1; shift; case $(\"$n\" -h 2>&1) in *'-q '*) q=-q0;; *) q=;; esac; \
                  for s do test -S \"$s\" && break; done; exec \"$n\" $q -U \"$s\"";
    let arguments = [native, netcat].into_iter().chain(ssh.sockets.iter().map(String::as_str)).map(quote);
    format!("sh -c {} {}", quote(script), arguments.collect::<Vec<_>>().join(" "))
}

/// One word for a shell.
fn quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Forwards the program's output, until the program ends.
async fn pump(mut messages: ChannelReadHalf, mut sink: DuplexStream, complaint: Arc<Mutex<String>>) {
    while let Some(message) = messages.wait().await {
        match message {
            ChannelMsg::Data { data } => {
                // Fails when no task reads any longer.
                let Ok(()) = sink.write_all(&data).await else { return };
            }
            ChannelMsg::ExtendedData { data, .. } => {
                let mut kept = complaint.lock().unwrap_or_else(PoisonError::into_inner);
                let room = COMPLAINT.saturating_sub(kept.len()).min(data.len());
                kept.push_str(&String::from_utf8_lossy(&data[..room]));
            }
            _ => {}
        }
    }
    let _ = sink.shutdown().await;
}

/// The program's output. Its end is a failure if the program reported an error.
struct Output {
    output: DuplexStream,
    complaint: Arc<Mutex<String>>,
}

impl AsyncRead for Output {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.output).poll_read(context, buffer))?;
        if buffer.filled().len() > before {
            return Poll::Ready(Ok(()));
        }
        let complaint = self.complaint.lock().unwrap_or_else(PoisonError::into_inner);
        Poll::Ready(match complaint.trim() {
            "" => Ok(()),
            complaint => Err(io::Error::other(format!("the program on the host ended: {complaint}"))),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_stays_one_word_for_a_shell() {
        for word in ["", "/run/a b", "it's", "$(touch /tmp/x) `id` \\ \" ;"] {
            let script = format!("printf %s {}", quote(word));
            let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
            assert_eq!(output.stdout, word.as_bytes(), "{word}");
        }
    }
}
