module peers/vsphere

go 1.26

require (
	github.com/google/uuid v1.6.0
	github.com/vmware/govmomi v0.53.1
)
