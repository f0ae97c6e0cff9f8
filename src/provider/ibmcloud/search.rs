//! The tags that users gave to instances. VPC does not show them, Global Search does.
//!
//! A tag may say that a VM is another cluster's. So there is no list without tags: whatever fails here fails the list.

use std::collections::HashMap;

use hyper::Method;
use jiff::{SignedDuration, Timestamp};
use operator_kit::Message;
use serde::Deserialize;
use serde_json::json;

use super::{
    ACTIONS,
    answer::{Instance, problem},
};
use crate::provider::{
    Error, ErrorClass, POD_VM,
    http::{Authorized, Call, Client, MOST_PAGES, Options, too_many_pages},
    ibm_iam::Iam,
    ownership::is_pod_vm,
};

const DOING: &str = "searching for the tags of instances";

/// All instances of VPC, in all regions of the account.
const QUERY: &str = "family:is AND type:instance";

/// How many results a page may have. A result may have many tags, and a body is bounded.
const PAGE: usize = 100;

/// How long Global Search may take to show a new instance.
const INDEXED: SignedDuration = SignedDuration::from_mins(10);

/// Global Search, in the account of the credentials.
pub(super) struct Search {
    client: Client,
    url: String,
}

/// The tags of all pod VMs that Global Search shows, by the instance's CRN.
pub(super) struct Tags(HashMap<String, Vec<(String, String)>>);

/// A page of what was found.
#[derive(Deserialize)]
struct Found {
    items: Vec<Item>,
    search_cursor: Option<String>,
}

#[derive(Deserialize)]
struct Item {
    crn: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    tags: Vec<String>,
}

impl Search {
    pub(super) fn new(endpoint: &str) -> Result<Self, Error> {
        let url = format!("{}/v3/resources/search?limit={PAGE}", endpoint.trim_end_matches('/'));
        Ok(Self { client: Client::new(Options::default())?, url })
    }

    pub(super) async fn tags(&self, api: &Authorized<Iam>) -> Result<Tags, Error> {
        let mut tags = HashMap::new();
        let mut question = json!({ "query": QUERY, "fields": ["crn", "name", "tags"] });
        for _ in 0..MOST_PAGES {
            let call = Call::to(DOING, Method::POST, &self.url)?.json(&question);
            // Global Search counts its requests apart from VPC, whose deletions must not wait for it.
            let call = Call { elsewhere: true, ..call.header("accept", "application/json")? };
            let reply = api.send_by(&self.client, call).await?;
            let reply = reply.success_or(|reply| {
                let (code, message) = problem(reply);
                reply.error(&code, &message, None)
            })?;
            let Found { items, search_cursor } = reply.json()?;
            // A page that is not full need not be the last one.
            let next = search_cursor.filter(|_| !items.is_empty());
            let pod_vms = items.into_iter().filter(|item| item.name.starts_with(POD_VM));
            tags.extend(pod_vms.map(|item| (item.crn, item.tags.iter().map(|it| tag(it)).collect())));
            let Some(cursor) = next else { return Ok(Tags(tags)) };
            question["search_cursor"] = cursor.into();
        }
        Err(too_many_pages(DOING))
    }
}

impl Tags {
    /// The tags of an instance that VPC shows. Global Search silently leaves out what the credentials may not see there. So an
    /// instance that it should show by now does not count as one without tags.
    pub(super) fn of(&self, instance: &Instance) -> Result<Vec<(String, String)>, Error> {
        if let Some(tags) = self.0.get(&instance.crn).cloned() {
            return Ok(tags);
        }
        let age = instance.created_at.map(|created| Timestamp::now().duration_since(created));
        // Images have names that begin as those of pod VMs.
        let is_image = !is_pod_vm(&instance.name);
        if is_image || instance.is_leaving() || age.is_some_and(|age| age.abs() < INDEXED) {
            return Ok(Vec::new());
        }
        let public = format!(
            "Global Search does not show a pod VM that VPC shows, so its tags are unknown; give the credentials {} for all pod VMs",
            ACTIONS[3]
        );
        let full = format!("{public}: {}", instance.id);
        Err(Error::new(ErrorClass::Unauthorized, Message::new(public, full)))
    }
}

/// A tag is `KEY:VALUE`, or a key alone.
fn tag(text: &str) -> (String, String) {
    let (key, value) = text.split_once(':').unwrap_or((text, ""));
    (key.to_owned(), value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::{ClusterClaims, Listed, Resource};

    fn instance(fields: &serde_json::Value) -> Instance {
        let mut all =
            json!({ "id": "0717_1", "name": "podvm-a-1a2b3c4d", "crn": "crn:1", "status": "running" });
        all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        serde_json::from_value(all).unwrap()
    }

    #[test]
    fn a_tag_is_a_key_and_what_follows_its_first_colon() {
        for (text, key, value) in [
            ("coco-pod-vm:a", "coco-pod-vm", "a"),
            ("a:b:c", "a", "b:c"),
            ("alone", "alone", ""),
            ("a:", "a", ""),
        ] {
            assert_eq!(tag(text), (key.to_owned(), value.to_owned()), "{text}");
        }
    }

    #[test]
    fn the_tag_of_cloud_api_adaptor_distinguishes_clusters() {
        let claims = ClusterClaims::of_tag("coco-pod-vm", "a", true);
        let vm = |text| Listed {
            tags: vec![tag(text)],
            ..Listed::new(Resource::Vm, "0717_1", "podvm-a-1a2b3c4d")
        };
        assert!(claims.proof(&vm("coco-pod-vm:a")).is_some() && !claims.is_of_another(&vm("coco-pod-vm:a")));
        assert!(claims.is_of_another(&vm("coco-pod-vm:b")));
    }

    #[test]
    fn an_old_instance_that_is_not_found_is_not_one_without_tags() {
        let of = |fields: serde_json::Value| Tags(HashMap::new()).of(&instance(&fields));
        let (old, young) = ("2025-01-01T00:00:00Z", Timestamp::now());
        assert_eq!(of(json!({ "created_at": young })), Ok(Vec::new()));
        assert_eq!(of(json!({ "created_at": old, "status": "deleting" })), Ok(Vec::new()));
        assert_eq!(of(json!({ "created_at": old, "name": "podvm-builder" })), Ok(Vec::new()));
        for unknown in [json!({ "created_at": old }), json!({})] {
            let error = of(unknown).unwrap_err();
            assert!(
                error.class == ErrorClass::Unauthorized && error.to_string().contains(ACTIONS[3]),
                "{error}"
            );
        }
        let found = Tags(HashMap::from([("crn:1".to_owned(), vec![tag("a:b")])]));
        assert_eq!(found.of(&instance(&json!({ "created_at": old }))), Ok(vec![tag("a:b")]));
    }
}
