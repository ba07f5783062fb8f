/* The probe's guest: what a kernel does in its first milliseconds. Loaded at 0x1000 and entered in real
 * mode; the tables it uses are laid out by kvm_probe.c. After each stage it writes the stage's number to
 * port 0x10, and stops when something is not as it should be (stage 0xff). */
#define BASE 0x1000
#define AT(label) (BASE + label - kvm_guest_start)
#define GDTR 0x5000
#define IDTR64 0x5010
#define GDTR64 0x5020
#define PML4 0x8000
#define LATE_PTE 0xe000
#define LATE_PAGE 0x40000000
#define STACK 0x10000

    .section .rodata
    .globl kvm_guest_start, kvm_guest_end
    .globl kvm_guest_breakpoint, kvm_guest_fault
kvm_guest_start:
    .code16
    cli
    movb $1, %al /* real mode runs */
    outb %al, $0x10
    lgdtl GDTR
    movl %cr0, %eax
    orl $1, %eax
    movl %eax, %cr0
    ljmpl $0x08, $AT(protected)

    .code32
protected:
    movw $0x10, %ax
    movw %ax, %ds
    movw %ax, %es
    movw %ax, %ss
    movb $2, %al /* protected mode */
    outb %al, $0x10
    movl %cr4, %eax
    orl $0x20, %eax /* PAE */
    movl %eax, %cr4
    movl $PML4, %eax
    movl %eax, %cr3
    movl $0xc0000080, %ecx /* EFER: SCE, LME */
    rdmsr
    orl $0x101, %eax
    wrmsr
    movl %cr0, %eax
    orl $0x80000000, %eax
    movl %eax, %cr0
    ljmpl $0x18, $AT(long_mode)

    .code64
long_mode:
    movl $0x10, %eax
    movl %eax, %ds
    movl %eax, %es
    movl %eax, %ss
    movl $STACK, %esp
    movb $3, %al /* 64-bit mode with paging */
    outb %al, $0x10

    lgdt GDTR64
    lidt IDTR64
    movl $0x38, %eax
    ltr %ax
    movb $4, %al /* own descriptor tables */
    outb %al, $0x10

    xorl %ebx, %ebx
    int3 /* the handler counts in ebx */
    cmpl $1, %ebx
    jne wrong
    movb $5, %al /* exception taken and returned from */
    outb %al, $0x10

    movl $LATE_PAGE, %edi /* not mapped: the handler maps it */
    movl $0x12345678, (%rdi)
    cmpl $0x12345678, (%rdi)
    jne wrong
    cmpl $2, %ebx
    jne wrong
    movb $6, %al /* page fault served */
    outb %al, $0x10

    movl $0xc0000101, %ecx /* GS base */
    movl $0x6000, %eax
    xorl %edx, %edx
    wrmsr
    swapgs
    swapgs
    cmpq $0, %gs:0 /* the null descriptor at 0x6000 */
    jne wrong
    movq %cr4, %rax
    orq $0x80, %rax /* PGE */
    movq %rax, %cr4
    movq %cr3, %rax
    movq %rax, %cr3
    movq %cr0, %rax
    orq $0x10000, %rax /* WP */
    movq %rax, %cr0
    xorl %eax, %eax
    cpuid
    rdtsc
    movb $7, %al /* control registers and MSRs */
    outb %al, $0x10

    movl $0xc0000081, %ecx /* STAR: kernel selectors 0x18, 0x20 */
    xorl %eax, %eax
    movl $0x18, %edx
    wrmsr
    incl %ecx /* LSTAR */
    movl $AT(system_call), %eax
    xorl %edx, %edx
    wrmsr
    pushq $0x2b /* to ring 3 */
    pushq $STACK
    pushq $0x2
    pushq $0x33
    pushq $AT(user)
    iretq
user:
    movl $0xabcd, %esi
    syscall
    jmp wrong
system_call:
    cmpl $0xabcd, %esi
    jne wrong
    movb $8, %al /* ring 3 and back */
    outb %al, $0x10
stop:
    hlt
    jmp stop
wrong:
    movb $0xff, %al
    outb %al, $0x10
    jmp stop

kvm_guest_breakpoint:
    incl %ebx
    iretq
kvm_guest_fault:
    pushq %rax
    movq %cr2, %rax
    cmpq $LATE_PAGE, %rax
    jne wrong
    movq $0x20003, LATE_PTE
    invlpg (%rax)
    incl %ebx
    popq %rax
    addq $8, %rsp /* error code */
    iretq
kvm_guest_end:
    .section .note.GNU-stack, "", @progbits
