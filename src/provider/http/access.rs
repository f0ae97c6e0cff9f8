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
    fn is_metadata(&self) -> bool {
        false
    }

    /// A new token, by this client.
    async fn fetch(&self, client: &Client) -> Result<Fresh<SecretString>, Error>;

    /// Fails if no request may carry this token. It is asked before each request.
    fn ensure(&self, _token: &SecretString) -> Result<(), Error> {
        Ok(())
    }

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
        Self::with(source, Options::default())
    }

    /// The same, and these options for all requests but those for tokens.
    pub fn with(source: S, options: Options) -> Result<Self, Error> {
        let of_tokens = if source.is_metadata() { Options::metadata() } else { Options::default() };
        let (client, token_client) = (Client::new(options)?, Client::new(of_tokens)?);
        Ok(Self { source, client, token_client, tokens: Tokens::default() })
    }

    /// See [`Provider::most_at_once`](crate::provider::Provider::most_at_once).
    pub fn most_at_once(&self) -> Option<usize> {
        self.client.most_at_once()
    }

    /// Fails unless there is a valid access token. Says where it comes from, for people.
    pub async fn origin(&self) -> Result<&'static str, Error> {
        self.token().await.map(|_| self.source.origin())
    }

    /// Sends `call` with a valid access token.
    pub async fn send(&self, call: Call) -> Result<Reply, Error> {
        self.send_by(&self.client, call).await
    }

    /// The same by the client for another API of the cloud.
    pub async fn send_by(&self, client: &Client, call: Call) -> Result<Reply, Error> {
        let token = self.token().await?;
        let reply = client.send_with(&token, call).await?;
        if self.source.is_refusal(&reply) {
            self.tokens.forget(|it| it.expose_secret() == token.expose_secret());
        }
        Ok(reply)
    }

    /// A token that requests may carry.
    pub async fn token(&self) -> Result<SecretString, Error> {
        let token = self.tokens.get(async || self.source.fetch(&self.token_client).await).await?;
        self.source.ensure(&token)?;
        Ok(token)
    }
}
