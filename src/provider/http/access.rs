//! A client whose requests carry an access token.

use hyper::StatusCode;
use secrecy::{ExposeSecret as _, SecretString};

use super::{Call, Client, Fresh, Options, Reply, Tokens};
use crate::provider::Error;

/// Where access tokens come from.
pub(in crate::provider) trait TokenSource {
    /// In a few words, for people.
    fn origin(&self) -> &'static str;

    /// Whether a server of the machine itself gives them.
    fn is_metadata(&self) -> bool;

    /// A new token, by this client.
    async fn fetch(&self, client: &Client) -> Result<Fresh<SecretString>, Error>;

    /// Whether the cloud refused a request because of its token, so that a new one may help.
    fn is_refusal(&self, reply: &Reply) -> bool {
        reply.status == StatusCode::UNAUTHORIZED
    }
}

/// A client for a cloud's API, and the tokens for it.
pub(in crate::provider) struct Authorized<S> {
    source: S,
    client: Client,
    /// For `source`.
    token_client: Client,
    tokens: Tokens<SecretString>,
}

impl<S: TokenSource> Authorized<S> {
    /// With tokens from this source.
    pub fn new(source: S) -> Result<Self, Error> {
        let options = if source.is_metadata() { Options::metadata() } else { Options::default() };
        let (client, token_client) = (Client::new(Options::default())?, Client::new(options)?);
        Ok(Self { source, client, token_client, tokens: Tokens::default() })
    }

    /// Fails unless there is a valid access token. Says where it comes from, for people.
    pub async fn origin(&self) -> Result<&'static str, Error> {
        self.token().await.map(|_| self.source.origin())
    }

    /// Sends `call` with a valid access token.
    pub async fn send(&self, call: Call) -> Result<Reply, Error> {
        let token = self.token().await?;
        let reply = self.client.send_with(&token, call).await?;
        if self.source.is_refusal(&reply) {
            self.tokens.forget(|it| it.expose_secret() == token.expose_secret()).await;
        }
        Ok(reply)
    }

    async fn token(&self) -> Result<SecretString, Error> {
        self.tokens.get(async || self.source.fetch(&self.token_client).await).await
    }
}
