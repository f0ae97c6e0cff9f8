//! Where VMs are in a cloud of regions *(no client)*.

use std::fmt;

use super::http::identity::{is_safe, unsafe_url};
use crate::settings::Malformed;

/// A region of a cloud, or of another cloud with the same API. Its [`Display`](fmt::Display) is recorded, so it stays as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RegionPlace {
    /// The region. It becomes part of a host's name.
    pub region: String,
    /// The URL of all services, if they are not the cloud's own. Credentials are sent there.
    pub endpoint: Option<String>,
}

impl RegionPlace {
    /// Reads what [`Display`](fmt::Display) wrote.
    pub fn recorded(address: &str) -> Option<Self> {
        let (region, endpoint) =
            address.split_once(' ').map_or((address, None), |(region, url)| (region, Some(url)));
        let is_place = is_region(region) && endpoint.is_none_or(is_safe);
        is_place.then(|| Self { region: region.to_owned(), endpoint: endpoint.map(str::to_owned) })
    }

    /// What is wrong with it, by the setting that names the region, such as `example`, and by the one that names the endpoint.
    pub fn problems(&self, region: &'static str, example: &str, endpoint: &'static str) -> Vec<Malformed> {
        let no_region = || Malformed::new(region, format!("it is no region, such as {example}"));
        let region = (!is_region(&self.region)).then(no_region);
        let endpoint = self.endpoint.as_deref().and_then(|url| unsafe_url(endpoint, url));
        region.into_iter().chain(endpoint).collect()
    }
}

impl fmt::Display for RegionPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.region)?;
        self.endpoint.iter().try_for_each(|endpoint| write!(f, " {endpoint}"))
    }
}

/// Whether this can be part of a host's name.
fn is_region(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_recorded_as_its_region_and_the_url_of_its_endpoint() {
        for (region, endpoint, address) in [
            ("eu-west-1", None, "eu-west-1"),
            ("eu-west-1", Some("https://a:1"), "eu-west-1 https://a:1"),
            ("RegionOne", Some("https://A.example/Api/"), "RegionOne https://A.example/Api/"),
        ] {
            let place = RegionPlace { region: region.to_owned(), endpoint: endpoint.map(str::to_owned) };
            assert_eq!(place.to_string(), address);
            assert_eq!(RegionPlace::recorded(address), Some(place));
        }
    }

    #[test]
    fn an_invalid_place_is_not_read_and_its_setting_is_named() {
        for (address, keys) in [
            ("eu-west-1.example.org/", &["R"][..]),
            ("", &["R"]),
            ("eu-west-1 http://a", &["E"]),
            ("eu-west-1 https://user@a", &["E"]),
            ("eu-west-1 https://a b", &["E"]),
            ("eu_west ftp://a", &["R", "E"]),
        ] {
            assert_eq!(RegionPlace::recorded(address), None, "{address}");
            let (region, endpoint) = address.split_once(' ').unwrap_or((address, "https://a"));
            let place = RegionPlace { region: region.to_owned(), endpoint: Some(endpoint.to_owned()) };
            let problems = place.problems("R", "eu-west-1", "E");
            assert_eq!(problems.iter().map(|it| it.key).collect::<Vec<_>>(), keys, "{address}");
        }
    }
}
