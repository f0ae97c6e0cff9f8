//! What a client answers the server by itself.

use std::io;

use russh::client::{ChannelOpenHandle, Handler, Session};
use russh::{Channel, client::Msg, keys::PublicKeyOrCertificate};

/// Whether the host key that a server shows is trusted.
pub trait HostKeyCheck: Send {
    /// Why there is no connection.
    type Error: From<russh::Error> + Send + std::fmt::Debug;

    /// Whether it is. An error ends the connection with this reason.
    fn check(&mut self, shown: &PublicKeyOrCertificate) -> Result<bool, Self::Error>;
}

/// A client that checks the host key so, and ends the connection if the server opens a channel. No sshd does so unless it was asked for
/// forwarding. russh would accept any number of them by default, each with a few KiB of memory.
pub struct ClientHandler<C>(pub C);

fn refused<E: From<russh::Error>>() -> Result<(), E> {
    let error = io::Error::other("the server opens a channel that the client did not ask for");
    Err(russh::Error::IO(error).into())
}

impl<C: HostKeyCheck> Handler for ClientHandler<C> {
    type Error = C::Error;

    async fn check_server_key(&mut self, shown: &PublicKeyOrCertificate) -> Result<bool, C::Error> {
        self.0.check(shown)
    }

    async fn server_channel_open_session(
        &mut self,
        _: Channel<Msg>,
        _: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), C::Error> {
        refused()
    }

    async fn server_channel_open_x11(
        &mut self,
        _: Channel<Msg>,
        _: &str,
        _: u32,
        _: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), C::Error> {
        refused()
    }

    async fn server_channel_open_agent_forward(
        &mut self,
        _: Channel<Msg>,
        _: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), C::Error> {
        refused()
    }

    async fn server_channel_open_direct_tcpip(
        &mut self,
        _: Channel<Msg>,
        _: &str,
        _: u32,
        _: &str,
        _: u32,
        _: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), C::Error> {
        refused()
    }

    async fn server_channel_open_direct_streamlocal(
        &mut self,
        _: Channel<Msg>,
        _: &str,
        _: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), C::Error> {
        refused()
    }

    async fn server_channel_open_forwarded_tcpip(
        &mut self,
        _: Channel<Msg>,
        _: &str,
        _: u32,
        _: &str,
        _: u32,
        _: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), C::Error> {
        refused()
    }

    async fn server_channel_open_forwarded_streamlocal(
        &mut self,
        _: Channel<Msg>,
        _: &str,
        _: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), C::Error> {
        refused()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use russh::client;
    use russh::keys::ssh_key::private::Ed25519Keypair;
    use russh::server::{self, Auth};
    use tokio::io::duplex;
    use tokio::time::timeout;

    use super::*;

    struct AnyKey;

    impl HostKeyCheck for AnyKey {
        type Error = russh::Error;

        fn check(&mut self, _: &PublicKeyOrCertificate) -> Result<bool, russh::Error> {
            Ok(true)
        }
    }

    /// It lets all users in.
    struct Server;

    impl server::Handler for Server {
        type Error = russh::Error;

        async fn auth_none(&mut self, _: &str) -> Result<Auth, russh::Error> {
            Ok(Auth::Accept)
        }
    }

    /// A client that is logged in, and the server, over a stream in memory.
    async fn logged_in() -> (client::Handle<ClientHandler<AnyKey>>, server::Handle) {
        let (near, far) = duplex(64 << 10);
        let key = Ed25519Keypair::from_seed(&[42; 32]).into();
        let config = server::Config { keys: vec![key], ..server::Config::default() };
        let serving = server::run_stream(Arc::new(config), far, Server);
        let connecting = client::connect_stream(Arc::default(), near, ClientHandler(AnyKey));
        let (serving, connected) = tokio::join!(serving, connecting);
        let (serving, mut handle) = (serving.unwrap(), connected.unwrap());
        let server = serving.handle();
        tokio::spawn(serving);
        assert!(handle.authenticate_none("user").await.unwrap().success());
        (handle, server)
    }

    #[tokio::test]
    async fn a_server_that_opens_a_channel_is_cut_off() {
        for kind in 0..7 {
            let (handle, server) = logged_in().await;
            let opened = async {
                match kind {
                    0 => server.channel_open_session().await,
                    1 => server.channel_open_agent().await,
                    2 => server.channel_open_x11("a", 1).await,
                    3 => server.channel_open_direct_tcpip("a", 1, "b", 2).await,
                    4 => server.channel_open_direct_streamlocal("a").await,
                    5 => server.channel_open_forwarded_tcpip("a", 1, "b", 2).await,
                    _ => server.channel_open_forwarded_streamlocal("a").await,
                }
            };
            let opened = timeout(Duration::from_secs(30), opened).await.unwrap();
            assert!(opened.is_err(), "{kind}");
            let ended = async {
                while !handle.is_closed() {
                    tokio::task::yield_now().await;
                }
            };
            timeout(Duration::from_secs(30), ended).await.unwrap();
        }
    }
}
