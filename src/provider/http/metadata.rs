//! The metadata server of a machine, which gives credentials to what runs there.

use hyper::{Method, header::HeaderValue};

use super::{Call, Client, Reply};
use crate::provider::{Error, ErrorClass};

/// Where all clouds have it.
const ADDRESS: &str = "169.254.169.254";

/// How one cloud's metadata server is asked.
#[derive(Debug)]
pub(in crate::provider) struct Metadata {
    /// Its URL, without a slash at the end.
    pub url: String,
    /// What 404 and 410 mean, and what is said about them. `None`: the same as of any other server.
    missing: Option<(ErrorClass, &'static str)>,
    /// What to do about any other failure.
    advice: &'static str,
}

impl Metadata {
    /// The server at this host or URL; without one, where all clouds have it.
    pub fn new(
        address: Option<String>,
        missing: Option<(ErrorClass, &'static str)>,
        advice: &'static str,
    ) -> Self {
        let address = address.unwrap_or_else(|| ADDRESS.to_owned());
        let url = if address.contains("://") { address } else { format!("http://{address}") };
        Self { url: url.trim_end_matches('/').to_owned(), missing, advice }
    }

    /// What it answers to a request for this path with this header. `client` has the options for metadata servers.
    pub async fn ask(
        &self,
        client: &Client,
        method: Method,
        path: &str,
        (name, value): (&'static str, HeaderValue),
    ) -> Result<Reply, Error> {
        let mut call = Call::to("asking the metadata server", method, &format!("{}{path}", self.url))?;
        call.request.headers_mut().insert(name, value);
        let reply = client.send(call).await.map_err(|error| error.advising(self.advice))?;
        reply.success_or(|reply| self.refusal(reply))
    }

    /// What it means that it refuses.
    pub fn refusal(&self, reply: &Reply) -> Error {
        match self.missing {
            Some((class, why)) if matches!(reply.status.as_u16(), 404 | 410) => {
                Error { class, ..reply.refusal() }.advising(why)
            }
            _ => reply.refusal().advising(self.advice),
        }
    }
}

#[cfg(test)]
mod tests {
    use hyper::StatusCode;

    use super::*;

    #[test]
    fn a_server_is_named_by_a_url_or_a_host() {
        for (address, url) in [
            (None, "http://169.254.169.254"),
            (Some("127.0.0.1:80"), "http://127.0.0.1:80"),
            (Some("http://[::1]:80/"), "http://[::1]:80"),
        ] {
            assert_eq!(Metadata::new(address.map(str::to_owned), None, "").url, url);
        }
    }

    #[test]
    fn a_cloud_says_what_404_and_410_mean_and_the_status_decides_what_others_do() {
        for missing in [None, Some(ErrorClass::Transient), Some(ErrorClass::Unauthorized)] {
            let server = Metadata::new(None, missing.map(|class| (class, "it is missing")), "advice");
            for status in [400, 401, 403, 404, 410, 429, 500, 503] {
                let reply = Reply::of(StatusCode::from_u16(status).unwrap(), "");
                let of_cloud = missing.filter(|_| [404, 410].contains(&status));
                let class = of_cloud.unwrap_or_else(|| reply.error("", "", None).class);
                let advice = if of_cloud.is_some() { "; it is missing" } else { "; advice" };
                let error = server.refusal(&reply);
                assert_eq!(error.class, class, "{status}");
                assert!(error.to_string().ends_with(advice), "{error}");
            }
        }
        let not_found = Reply::of(StatusCode::NOT_FOUND, "");
        assert_eq!(Metadata::new(None, None, "").refusal(&not_found).class, ErrorClass::Invalid);
    }
}
