//! Whether the user sees every pod VM, and what that means for a VM that vCenter does not find.
//!
//! vCenter hides a VM that the user may not read. A VM has the privileges of its folder, unless a permission of that folder does
//! not propagate. So a user who may read a folder whose permissions all propagate reads every VM in it.

use std::sync::Arc;

use operator_kit::Message;
use tokio::time::Instant;

use super::{
    PRIVILEGES, Vsphere,
    answer::in_the_middle,
    machine,
    reference::{Ref, element},
    session::{Method, Session},
    shared_list::Shown,
};
use crate::provider::{
    Error, ErrorClass, Finding, InstanceId, Listed, POD_VM,
    error::release_advice,
    finding::{DELETE, LOOK_UP, counted, ensure_answered, ensure_rights, examine},
    http::{MOST_PAGES, too_many_pages},
};

/// How many VMs a page of a list may have.
const PAGE: &str = "500";

impl Vsphere {
    /// What it means that a search which ended at that time did not find a VM.
    pub(super) async fn missing(&self, id: &InstanceId, pod: Option<&str>, searched: Instant) -> Error {
        match self.proven_absent(id, pod, searched).await {
            Ok(()) => Error::new(ErrorClass::NotFound, "vCenter has no such VM"),
            Err(doubt) => doubt,
        }
    }

    async fn proven_absent(
        &self,
        id: &InstanceId,
        pod: Option<&str>,
        searched: Instant,
    ) -> Result<(), Error> {
        // Boxed, as a future this large would be held twice.
        let shown = self.shared.after(searched, Box::pin(self.shown())).await?;
        let doubt = |public: String| Err(Error::new(ErrorClass::Transient, Message::public(public)));
        if !shown.lacks(id) {
            return doubt("vCenter lists the VM, but does not find it".to_owned());
        }
        if shown.may_hide(pod) {
            return doubt(format!(
                "vCenter does not know the UUID of a pod VM at present, which may be this one; it may just be made, or its host or its \
                 datastore be down; if the VM is gone, {}",
                release_advice()
            ));
        }
        Ok(())
    }

    /// The VMs in the folder of pod VMs. Fails unless the user sees all of them.
    async fn shown(&self) -> Result<Shown, Error> {
        let folder = self.folder().await?;
        self.ensure_sight(&folder).await?;
        let mut shown = Shown::default();
        let note = |entries: Vec<Listed>| entries.iter().for_each(|entry| shown.note(entry));
        self.machines("looking for VMs in their folder", &folder, note).await?;
        Ok(shown)
    }

    /// The folder in which pod VMs are made, in the vCenter to which the address leads now.
    pub(super) async fn folder(&self) -> Result<Ref, Error> {
        let (_, folder) = self.search_folder().await?;
        folder.filter(|folder| folder.is("Folder")).ok_or_else(|| {
            let public = "vCenter shows no folder of VMs named GOVC_FOLDER in GOVC_DATACENTER: there is none, or the user may \
                          not see it; name a data centre that is in a folder by its path, such as europe/dc";
            Error::new(ErrorClass::Unauthorized, Message::new(public, format!("{public}: {}", self.folder)))
        })
    }

    /// Searches the folder by a new connection. The session is with the vCenter to which the address leads now.
    pub(super) async fn search_folder(&self) -> Result<(Arc<Session>, Option<Ref>), Error> {
        let path = element("inventoryPath", &self.folder);
        let search = self.vcenter.call_anew(
            Method::reading("looking up the folder of pod VMs", "FindByInventoryPath"),
            |session| session.search_index.element("_this") + &path,
        );
        let (session, answer) = search.await?;
        Ok((session, answer.child("returnval").and_then(Ref::of)))
    }

    /// Fails unless the user may read each VM of the folder.
    async fn ensure_sight(&self, folder: &Ref) -> Result<(), Error> {
        self.ensure_privileges(folder, &PRIVILEGES[..1]).await?;
        let arguments = folder.element("entity") + &element("inherited", "false");
        let doing = "reading the permissions of the folder of pod VMs";
        let read = self.vcenter.call(Method::reading(doing, "RetrieveEntityPermissions"), |session| {
            session.authorization_manager.element("_this") + &arguments
        });
        if read.await?.all("returnval").all(|permission| permission.text_of("propagate") == "true") {
            return Ok(());
        }
        let message = "a permission on the folder of pod VMs does not propagate, so the user may not see the VMs in it; let all \
                       permissions of that folder propagate to children";
        Err(Error::new(ErrorClass::Unauthorized, message))
    }

    /// Fails with those of these privileges that the user lacks in the folder.
    async fn ensure_privileges(&self, folder: &Ref, wanted: &[&str]) -> Result<(), Error> {
        let ids: String = wanted.iter().map(|id| element("privId", id)).collect();
        let doing = "asking for the privileges in the folder of pod VMs";
        let ask = self.vcenter.call(Method::reading(doing, "HasPrivilegeOnEntities"), |session| {
            let (this, session) =
                (session.authorization_manager.element("_this"), element("sessionId", &session.key));
            [this, folder.element("entity"), session, ids.clone()].concat()
        });
        let answer = ask.await?;
        let of_folder = answer
            .child("returnval")
            .filter(|it| it.child("entity").and_then(Ref::of).as_ref() == Some(folder));
        let granted = |id: &str| {
            let mut all = of_folder.into_iter().flat_map(|it| it.all("privAvailability"));
            all.any(|it| it.text_of("privId") == id && it.text_of("isGranted") == "true")
        };
        ensure_rights(wanted, granted)
    }

    /// Calls `take` with all VMs of the folder and of those in it, page by page. A list is read to its end even if a VM in it cannot
    /// be read: vCenter keeps the rest until the session ends. Fails unless the list has the folder itself: in a session that has ended,
    /// vCenter may answer with an empty list.
    pub(super) async fn machines(
        &self,
        doing: &'static str,
        folder: &Ref,
        mut take: impl FnMut(Vec<Listed>) + Send,
    ) -> Result<(), Error> {
        let arguments =
            format!("{}<options>{}</options>", machine::list(folder), element("maxObjects", PAGE));
        let first = self.vcenter.begin(Method::reading(doing, "RetrievePropertiesEx"), |session| {
            session.property_collector.element("_this") + &arguments
        });
        let (session, mut answer) = first.await?;
        let unshown = || {
            Error::new(ErrorClass::Transient, "vCenter lists the VMs, but not the folder that they are in")
        };
        let (mut listed, mut has_folder) = (Ok(()), false);
        for _ in 0..MOST_PAGES {
            let page = answer.child("returnval").ok_or_else(unshown)?;
            has_folder |= page.all("objects").any(|object| machine::shows(object, folder));
            let vms = page.all("objects").filter(|object| !machine::is_folder(object));
            match vms.map(machine::entry).collect::<Result<Vec<_>, _>>() {
                Ok(entries) => take(entries),
                Err(problem) => listed = Err(problem),
            }
            let token = page.text_of("token");
            if token.is_empty() {
                return if has_folder { listed } else { Err(unshown()) };
            }
            let arguments = session.property_collector.element("_this") + &element("token", token);
            let next = self.vcenter.call_in(
                &session,
                Method::reading(doing, "ContinueRetrievePropertiesEx"),
                &arguments,
            );
            answer = next.await.map_err(in_the_middle)?;
        }
        Err(too_many_pages(doing))
    }

    /// Logs in, lists the folder, and asks for privileges.
    pub(super) async fn examination(&self) -> Result<Vec<Finding>, Error> {
        let session = self.vcenter.session().await;
        let session = session.map(|session| format!("logged in to {}", session.product));
        let without = (&[LOOK_UP, DELETE][..], "check is not logged in");
        examine("vCenter", session, without, async || self.examined_folder().await).await
    }

    async fn examined_folder(&self) -> Result<Vec<Finding>, Error> {
        let folder = ensure_answered(self.folder().await)?;
        let (look_up, delete) = match &folder {
            Err(error) => (Err(error.clone()), Err(error.clone())),
            Ok(folder) => {
                (self.examined_sight(folder).await, self.ensure_privileges(folder, &PRIVILEGES[1..]).await)
            }
        };
        Ok(vec![
            Finding::tried(LOOK_UP, look_up),
            Finding::tried(
                DELETE,
                delete.map(|()| format!("the user has {} in the folder", PRIVILEGES[1..].join(" and "))),
            ),
        ])
    }

    async fn examined_sight(&self, folder: &Ref) -> Result<String, Error> {
        self.ensure_sight(folder).await?;
        let mut pod_vms = 0;
        let count = |entries: Vec<Listed>| {
            pod_vms += entries.iter().filter(|entry| entry.name.starts_with(POD_VM)).count();
        };
        self.machines("listing the VMs", folder, count).await?;
        Ok(format!("the folder has {} named {POD_VM}…", counted(pod_vms, "VM")))
    }
}
