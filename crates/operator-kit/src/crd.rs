//! The custom resource definitions of an operator, which may not be installed yet.

use kube::Resource;

use crate::api_call::is_unknown_kind;

/// An operator's own kinds, for the text of a failure that a missing definition explains.
#[derive(Clone, Copy, Debug)]
pub struct Crds {
    /// Their API group.
    pub group: &'static str,
    /// The command that installs them.
    pub install: &'static str,
}

impl Crds {
    /// What to do where a watch, a list or a write of `K` failed because its definition is not installed. `None`: it failed
    /// otherwise, or `K` is not one of these kinds.
    pub fn missing<K: Resource<DynamicType = ()>>(&self, problem: &kube::Error) -> Option<String> {
        let kube::Error::Api(status) = problem else { return None };
        let missing = K::group(&()) == self.group && is_unknown_kind(status);
        missing.then(|| format!("the CRD {} is not installed: {}", crd_name::<K>(), self.install))
    }
}

/// The name of a kind's definition.
pub fn crd_name<K: Resource<DynamicType = ()>>() -> String {
    format!("{}.{}", K::plural(&()), K::group(&()))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use kube::core::Status;

    use crate::{
        api_call::ApiError,
        widget::{CRDS, Gadget, Widget},
    };

    fn answer(code: u16, message: &str, reason: &str) -> kube::Error {
        kube::Error::Api(Status::failure(message, reason).with_code(code).boxed())
    }

    #[test]
    fn only_a_bare_404_means_that_a_crd_is_not_installed() {
        let bare = || answer(404, "404 page not found", "Failed to parse error data");
        assert_eq!(
            CRDS.missing::<Gadget>(&bare()).as_deref(),
            Some("the CRD gadgets.example.com is not installed: kubectl apply -f crds")
        );
        assert!(CRDS.missing::<Widget>(&bare()).unwrap().starts_with("the CRD widgets.example.com "));
        assert!(!ApiError::from(bare()).to_string().contains("Failed to parse"));
        for other in [
            answer(404, "namespaces \"a\" not found", "NotFound"),
            answer(404, "404 page not found", "NotFound"),
            answer(404, "<html>nothing here</html>", "Failed to parse error data"),
            answer(503, "404 page not found", "Failed to parse error data"),
            kube::Error::Service("connection refused".into()),
        ] {
            assert_eq!(CRDS.missing::<Widget>(&other), None, "{other}");
        }
        assert_eq!(CRDS.missing::<Pod>(&bare()), None, "not a kind of this operator's");
    }
}
